package httplimit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/httplimit"
)

func TestTheClientIsThePeerOrTheFirstThatIsNotTrusted(t *testing.T) {
	trusting := httplimit.ClientIP([]string{"10.0.0.0/8", "::ffff:172.16.0.0/108", "2001:db8:1::/48", "203.0.113.9", "64:ff9b::192.168.0.0/112", "64:ff9b::203.0.113.10"})
	hops := func(n int, rest string) []string {
		return []string{rest + strings.Repeat(",10.1.1.1", n)}
	}
	for _, c := range []struct {
		name, remote string
		forwarded    []string
		want         string
	}{
		{"no proxy", "192.0.2.1:1", nil, "192.0.2.1"},
		{"a peer that is not trusted says nothing", "192.0.2.1:1", []string{"198.51.100.7"}, "192.0.2.1"},
		{"a proxy", "10.0.0.1:1", []string{"198.51.100.7"}, "198.51.100.7"},
		{"a proxy by its address", "203.0.113.9:1", []string{"198.51.100.7"}, "198.51.100.7"},
		{"a proxy as IPv6", "[::ffff:10.0.0.1]:1", []string{"198.51.100.7"}, "198.51.100.7"},
		{"trusted as IPv6", "172.16.3.4:1", []string{"198.51.100.7"}, "198.51.100.7"},
		{"an IPv6 proxy", "[2001:db8:1::5%eth0]:1", []string{"198.51.100.7"}, "198.51.100.7"},
		{"two proxies", "10.0.0.1:1", []string{"198.51.100.7, 10.0.0.2"}, "198.51.100.7"},
		{"what the client wrote is not read", "10.0.0.1:1", []string{"1.1.1.1, 198.51.100.7, 10.0.0.2"}, "198.51.100.7"},
		{"fields are joined", "10.0.0.1:1", []string{"1.1.1.1", "198.51.100.7", "10.0.0.2,10.0.0.3"}, "198.51.100.7"},
		{"with ports and brackets", "10.0.0.1:1", []string{"198.51.100.7:80 ,\t[2001:db8:1::1]:99, [2001:db8:1::2]"}, "198.51.100.7"},
		{"an IPv6 client", "10.0.0.1:1", []string{"2001:db8:2:3:4::5"}, "2001:db8:2:3::/64"},
		{"an IPv4 client as IPv6", "10.0.0.1:1", []string{"::ffff:198.51.100.7"}, "198.51.100.7"},
		{"an IPv4 client by NAT64", "10.0.0.1:1", []string{"64:ff9b::198.51.100.7"}, "198.51.100.7"},
		{"an IPv4 peer by NAT64", "[64:ff9b::192.0.2.1]:1", nil, "192.0.2.1"},
		{"a proxy by NAT64", "[64:ff9b::10.0.0.1]:1", []string{"198.51.100.7"}, "198.51.100.7"},
		{"trusted by NAT64", "192.168.3.4:1", []string{"198.51.100.7"}, "198.51.100.7"},
		{"trusted by NAT64, a single one", "203.0.113.10:1", []string{"198.51.100.7"}, "198.51.100.7"},
		{"beside NAT64", "[64:ff9b::1:c000:201]:1", nil, "64:ff9b::/64"},
		{"a network's own NAT64", "[64:ff9b:1::c000:201]:1", nil, "64:ff9b:1::c000:201/128"},
		{"another client of it", "[64:ff9b:1::c000:202]:1", nil, "64:ff9b:1::c000:202/128"},
		{"one with a prefix of 48 bits", "10.0.0.1:1", []string{"64:ff9b:1:c000:2:100::"}, "64:ff9b:1:c000:2:100::/128"},
		{"one whose IPv4 address is a proxy's elsewhere", "[64:ff9b:1::10.0.0.1]:1", []string{"198.51.100.7"}, "64:ff9b:1::a00:1/128"},
		{"beside it", "[64:ff9b:2::c000:201]:1", nil, "64:ff9b:2::/64"},
		{"6to4", "[2002:c000:201:7::1]:1", nil, "2002:c000:201::/48"},
		{"another network of its IPv4 address", "10.0.0.1:1", []string{"2002:c000:201:8::2"}, "2002:c000:201::/48"},
		{"beside 6to4", "[2003:c000:201:7::1]:1", nil, "2003:c000:201:7::/64"},
		{"all trusted", "10.0.0.1:1", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		{"nothing forwarded", "10.0.0.1:1", nil, "10.0.0.1"},
		{"an empty field", "10.0.0.1:1", []string{""}, "10.0.0.1"},
		{"garbage where the client should be", "10.0.0.1:1", []string{"198.51.100.7, unknown, 10.0.0.2"}, "10.0.0.2"},
		{"garbage further left", "10.0.0.1:1", []string{"unknown, 198.51.100.7"}, "198.51.100.7"},
		{"an empty hop", "10.0.0.1:1", []string{"198.51.100.7,,10.0.0.2"}, "10.0.0.2"},
		{"a port that is none", "10.0.0.1:1", []string{"198.51.100.7:http"}, "10.0.0.1"},
		{"leading zeros", "10.0.0.1:1", []string{"198.51.100.007"}, "10.0.0.1"},
		{"31 hops", "10.0.0.1:1", hops(31, "198.51.100.7"), "198.51.100.7"},
		{"32 trusted hops", "10.0.0.1:1", hops(32, "198.51.100.7"), "10.1.1.1"},
		{"within 4 KiB", "10.0.0.1:1", []string{"198.51.100.7," + strings.Repeat(" ", 4080-9) + "10.1.1.1"}, "198.51.100.7"},
		{"beyond 4 KiB", "10.0.0.1:1", []string{"198.51.100.7," + strings.Repeat(" ", 4090-9) + "10.1.1.1"}, "10.1.1.1"},
		{"one hop of 1 MiB", "10.0.0.1:1", []string{strings.Repeat("1", 1<<20)}, "10.0.0.1"},
		{"an IPv6 peer", "[2001:db8:9:8:7:6:5:4]:1", nil, "2001:db8:9:8::/64"},
		{"a link-local peer", "[fe80::1%eth0]:1", nil, "fe80::/64"},
		{"a bare address, by other middleware", "192.0.2.1", nil, "192.0.2.1"},
		{"a bare IPv6 address", "2001:db8::1", nil, "2001:db8::/64"},
		{"a Unix socket", "@", nil, ""},
		{"nothing at all", "", nil, ""},
		{"half an address", "[::1", nil, ""},
		{"a port without digits", "192.0.2.1:", nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := get(c.remote)
			r.Header["X-Forwarded-For"] = c.forwarded
			key, err := trusting.Of(r)
			require.Equal(t, c.want, key)
			if c.want == "" {
				require.ErrorIs(t, err, httplimit.ErrNoIdentity)
			}
		})
	}
}

func TestAddressesAreGroupedByNetworks(t *testing.T) {
	proxies := []string{"10.0.0.0/8"}
	for _, c := range []struct {
		addr, want string
		opts       []httplimit.IPOption
	}{
		{"192.0.2.77", "192.0.2.0/24", []httplimit.IPOption{httplimit.IPv4Prefix(24)}},
		{"192.0.2.77", "192.0.0.0/16", []httplimit.IPOption{httplimit.IPv4Prefix(16)}},
		{"192.0.2.77", "192.0.2.77", []httplimit.IPOption{httplimit.IPv4Prefix(24), httplimit.IPv4Prefix(32)}},
		{"::ffff:192.0.2.77", "192.0.2.0/24", []httplimit.IPOption{httplimit.IPv4Prefix(24)}},
		{"64:ff9b::192.0.2.77", "192.0.2.0/24", []httplimit.IPOption{httplimit.IPv4Prefix(24)}},
		{"64:ff9b:1::c000:201", "64:ff9b:1::c000:201/128", []httplimit.IPOption{httplimit.IPv4Prefix(24), httplimit.IPv6Prefix(48)}},
		{"2001:db8:1:2::3", "2001:db8:1:2::/64", []httplimit.IPOption{httplimit.IPv4Prefix(24)}},
		{"2001:db8:1:2::3", "2001:db8:1::/48", []httplimit.IPOption{httplimit.IPv4Prefix(24), httplimit.IPv6Prefix(48)}},
		{"2002:c000:24d:2::3", "2002:c000:24d::/48", []httplimit.IPOption{httplimit.IPv6Prefix(56)}},
		{"2002:c000:24d:2::3", "2002:c000::/32", []httplimit.IPOption{httplimit.IPv6Prefix(32)}},
	} {
		r := get("[" + c.addr + "]:7")
		key, err := httplimit.PeerIP(c.opts...).Of(r)
		require.NoError(t, err)
		require.Equal(t, c.want, key, c.addr)

		r = get("10.0.0.1:1")
		r.Header.Set("X-Forwarded-For", c.addr)
		key, err = httplimit.ClientIP(proxies, c.opts...).Of(r)
		require.NoError(t, err)
		require.Equal(t, c.want, key, c.addr)
	}
	key, err := httplimit.PeerIP(httplimit.IPv4Prefix(24)).Of(get("192.0.2.77:1"))
	require.NoError(t, err)
	require.Equal(t, "192.0.2.0/24", key, "and not by the short way")
}

func TestAProxyOnAUnixSocketCanBeTrusted(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Skip(err)
	}
	trusting := httplimit.ClientIP([]string{"unix", "10.0.0.0/8"})
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := httplimit.ClientIP([]string{"10.0.0.0/8"}).Of(r)
		if !errors.Is(err, httplimit.ErrNoIdentity) {
			fmt.Fprint(w, "trusted unasked")
			return
		}
		key, err := trusting.Of(r)
		fmt.Fprint(w, key, err)
	})}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	defer client.CloseIdleConnections()
	const none = "httplimit: no identity: RemoteAddr is not an IP address"
	for forwarded, want := range map[string]string{
		"198.51.100.7":                   "198.51.100.7<nil>",
		"1.1.1.1, 198.51.100.7,10.0.0.2": "198.51.100.7<nil>",
		"2001:db8:2:3::4":                "2001:db8:2:3::/64<nil>",
		"":                               none,
		"unknown":                        none,
		"unix":                           none,
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://proxy/", nil)
		require.NoError(t, err)
		r.Header.Set("X-Forwarded-For", forwarded)
		res, err := client.Do(r)
		require.NoError(t, err)
		b, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, want, string(b), forwarded)
	}
	r := get("@") // by TCP, of a middleware that has changed RemoteAddr
	r.Header.Set("X-Forwarded-For", "198.51.100.7")
	_, err = trusting.Of(r)
	require.ErrorIs(t, err, httplimit.ErrNoIdentity)
}

func TestOnlyForwardedForIsBelieved(t *testing.T) {
	r := get("10.0.0.1:1")
	for _, field := range []string{"X-Real-IP", "True-Client-IP", "CF-Connecting-IP", "Forwarded", "X-Client-IP"} {
		r.Header.Set(field, "198.51.100.7")
	}
	require.Equal(t, "10.0.0.1", keyOf(t, httplimit.ClientIP([]string{"10.0.0.0/8"}), r))
}

func TestSignsOfAWrongKeyAreLoggedOnce(t *testing.T) {
	for _, c := range []struct {
		name  string
		key   httplimit.Key
		field string // of the request
		want  string
	}{
		{"PeerIP behind a proxy", httplimit.PeerIP(), "X-Forwarded-For",
			"httplimit: a request from 192.0.2.1 has X-Forwarded-For, which PeerIP does not read: if that address is a proxy, all clients behind it share one limit; use ClientIP with the proxy's address (ratelimit-serve: set -proxies)\n"},
		{"within another Key", httplimit.Combined(httplimit.Method(), httplimit.PeerIP()), "X-Forwarded-For",
			"httplimit: a request from 192.0.2.1 has X-Forwarded-For, which PeerIP does not read: if that address is a proxy, all clients behind it share one limit; use ClientIP with the proxy's address (ratelimit-serve: set -proxies)\n"},
		{"PeerIP without a proxy", httplimit.PeerIP(), "Accept", ""},
		{"ClientIP and a proxy that it does not know", httplimit.ClientIP([]string{"10.0.0.0/8"}), "X-Forwarded-For",
			"httplimit: a request with X-Forwarded-For comes from 192.0.2.1, which is not among the trusted proxies: if that address is a proxy, all clients behind it share one limit; add it to the proxies of ClientIP (ratelimit-serve: to -proxies)\n"},
		{"ClientIP and a proxy that it knows", httplimit.ClientIP([]string{"192.0.2.1"}), "X-Forwarded-For", ""},
		{"ClientIP without a proxy", httplimit.ClientIP([]string{"10.0.0.0/8"}), "Accept", ""},
		{"Route outside of the mux", httplimit.Route(), "Accept",
			"httplimit: no identity: no pattern has matched: put the middleware around handlers, not around the mux\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var said bytes.Buffer
			server := &http.Server{ErrorLog: log.New(&said, "", 0)}
			h := protect(t, plenty(t), httplimit.WithKey(c.key))
			for range 3 {
				r := get("192.0.2.1:1")
				r.Header.Set(c.field, "198.51.100.7")
				h.ServeHTTP(httptest.NewRecorder(), r.WithContext(context.WithValue(r.Context(), http.ServerContextKey, server)))
			}
			require.Equal(t, c.want, said.String())
		})
	}
}

func TestOnlyTheBeginningOfAWrongAddressIsLogged(t *testing.T) {
	var said bytes.Buffer
	r := get(strings.Repeat("x", 100) + "\n") // by a middleware that has copied a header field into it
	r.Header.Set("X-Forwarded-For", "198.51.100.7")
	server := &http.Server{ErrorLog: log.New(&said, "", 0)}
	_, err := httplimit.PeerIP().Of(r.WithContext(context.WithValue(r.Context(), http.ServerContextKey, server)))
	require.ErrorIs(t, err, httplimit.ErrNoIdentity)
	require.Contains(t, said.String(), `a request from "`+strings.Repeat("x", 64)+`" has`)
}

func TestIPv6AddressesAreGroupedAsWished(t *testing.T) {
	r := get("[2001:db8:aabb:ccdd:eeff::1]:1")
	for bits, want := range map[int]string{32: "2001:db8::/32", 48: "2001:db8:aabb::/48", 56: "2001:db8:aabb:cc00::/56", 64: "2001:db8:aabb:ccdd::/64"} {
		require.Equal(t, want, keyOf(t, httplimit.PeerIP(httplimit.IPv6Prefix(bits)), r))
	}
}

// FuzzForwardedFor checks ClientIP by a reading of its own: the client is the peer, or
// an address of X-Forwarded-For to the right of which all are trusted.
func FuzzForwardedFor(f *testing.F) {
	f.Add("10.0.0.1:1", "1.1.1.1, 198.51.100.7, 10.0.0.2", "10.0.0.3")
	f.Add("192.0.2.1:1", "198.51.100.7", "")
	f.Add("[2001:db8::1]:1", "2001:db8::2, unknown", "[2001:db8::3]:80")
	f.Add("[64:ff9b::10.0.0.1]:1", "64:ff9b::198.51.100.7", "64:ff9b::10.0.0.2")
	f.Add("[64:ff9b:1::10.0.0.1]:1", "", "")
	f.Add("[2002:c000:201::1]:1", "", "")
	f.Add("10.0.0.1:1", ",,,", "::ffff:10.0.0.9")
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32")}
	k := httplimit.ClientIP([]string{"10.0.0.0/8", "2001:db8::/32"})
	f.Fuzz(func(t *testing.T, remote, one, two string) {
		r := get(remote)
		r.Header["X-Forwarded-For"] = []string{one, two}
		key, err := k.Of(r)
		if err != nil {
			require.ErrorIs(t, err, httplimit.ErrNoIdentity)
			return
		}
		hops := strings.Split(one+","+two, ",")
		hops = append(hops, remote)
		for i := len(hops) - 1; i >= 0; i-- {
			addr, valid := address(hops[i])
			if !valid {
				break
			}
			if key == group(addr) {
				return
			}
			if !trusted[0].Contains(addr) && !trusted[1].Contains(addr) {
				break
			}
		}
		t.Fatalf("%q forwarded for %q, %q: %q is neither the peer nor after the first that is not trusted", remote, one, two, key)
	})
}

// address reads a hop as netip does.
func address(hop string) (netip.Addr, bool) {
	hop = strings.Trim(hop, " \t")
	if ap, err := netip.ParseAddrPort(hop); err == nil {
		return plain(ap.Addr()), true
	}
	if len(hop) > 2 && hop[0] == '[' && hop[len(hop)-1] == ']' {
		hop = hop[1 : len(hop)-1]
	} else if i := strings.LastIndexByte(hop, ']'); i > 0 && hop[0] == '[' { // a port that netip refuses
		hop = hop[1:i]
	} else if strings.Count(hop, ":") == 1 {
		hop, _, _ = strings.Cut(hop, ":")
	}
	addr, err := netip.ParseAddr(hop)
	return plain(addr), err == nil
}

// plain is addr without zone, and as IPv4 if it can be.
func plain(addr netip.Addr) netip.Addr {
	if text := addr.WithZone("").StringExpanded(); strings.HasPrefix(text, "0064:ff9b:0000:0000:0000:0000:") {
		b := addr.As16()
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return addr.WithZone("").Unmap()
}

func group(addr netip.Addr) string {
	if addr.Is4() {
		return addr.String()
	}
	if strings.HasPrefix(addr.StringExpanded(), "0064:ff9b:0001:") {
		return addr.String() + "/128"
	}
	if strings.HasPrefix(addr.StringExpanded(), "2002:") {
		return netip.PrefixFrom(addr, 48).Masked().String()
	}
	return netip.PrefixFrom(addr, 64).Masked().String()
}
