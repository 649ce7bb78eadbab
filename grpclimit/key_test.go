package grpclimit_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/grpclimit"
)

// addr is an address of a network that is not TCP.
type addr string

func (addr) Network() string  { return "test" }
func (a addr) String() string { return string(a) }

func from(t *testing.T, a net.Addr) context.Context {
	return peer.NewContext(t.Context(), &peer.Peer{Addr: a})
}

func TestAPeerIsAnIPv4AddressOrANetworkOfIPv6(t *testing.T) {
	for _, c := range []struct {
		addr net.Addr
		want string
	}{
		{&net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 7}, "192.0.2.1"},
		{&net.TCPAddr{IP: net.IPv4(192, 0, 2, 1).To4(), Port: 8}, "192.0.2.1"},
		{&net.TCPAddr{IP: net.ParseIP("::ffff:192.0.2.1")}, "192.0.2.1"},
		{&net.TCPAddr{IP: net.ParseIP("64:ff9b::192.0.2.1")}, "192.0.2.1"},
		{addr("[64:ff9b::192.0.2.1%eth0]:7"), "192.0.2.1"},
		{addr("[64:ff9b:1::192.0.2.1]:7"), "64:ff9b:1::c000:201/128"},
		{&net.TCPAddr{IP: net.ParseIP("2001:db8:1:2:3:4:5:6")}, "2001:db8:1:2::/64"},
		{&net.TCPAddr{IP: net.ParseIP("2001:db8:1:2:ffff::1")}, "2001:db8:1:2::/64"},
		{&net.TCPAddr{IP: net.ParseIP("fe80::1"), Zone: "eth0"}, "fe80::/64"},
		{addr("192.0.2.1:7"), "192.0.2.1"},
		{addr("[2001:db8::1%eth0]:7"), "2001:db8::/64"},
		{addr("[::ffff:192.0.2.1%eth0]:7"), "192.0.2.1"},
		{addr("192.0.2.1"), "192.0.2.1"},
	} {
		key, err := grpclimit.PeerIP().Of(from(t, c.addr), unaryCall)
		require.NoError(t, err)
		require.Equal(t, c.want, key, c.addr.String())
	}
	for bits, want := range map[int]string{32: "2001:db8::/32", 48: "2001:db8:1::/48", 64: "2001:db8:1:2::/64"} {
		key, err := grpclimit.PeerIP(grpclimit.IPv6Prefix(bits)).Of(from(t, addr("[2001:db8:1:2::3]:7")), unaryCall)
		require.NoError(t, err)
		require.Equal(t, want, key)
	}
}

func TestAPeerWithoutAnAddressHasNoIdentity(t *testing.T) {
	for _, ctx := range []context.Context{
		t.Context(), from(t, nil), from(t, &net.TCPAddr{}), from(t, &net.UnixAddr{Name: "@", Net: "unix"}), from(t, addr("bufconn")), from(t, addr("")),
	} {
		_, err := grpclimit.PeerIP().Of(ctx, unaryCall)
		require.ErrorIs(t, err, grpclimit.ErrNoIdentity)
	}
}

func TestTheClientIsTheFirstThatIsNotTrusted(t *testing.T) {
	trusting := grpclimit.ClientIP([]string{"10.0.0.0/8", "unix", "2001:db8:1::/48"}, grpclimit.IPv6Prefix(48))
	for _, c := range []struct {
		peer      net.Addr
		forwarded []string
		want      string
	}{
		{addr("192.0.2.1:1"), []string{"198.51.100.7"}, "192.0.2.1"},
		{addr("10.0.0.1:1"), []string{"198.51.100.7"}, "198.51.100.7"},
		{addr("[64:ff9b::10.0.0.1]:1"), []string{"64:ff9b::198.51.100.7"}, "198.51.100.7"},
		{addr("[2001:db8:1::2]:1"), []string{"1.1.1.1", "2001:db8:2:3:4::5", "10.0.0.2"}, "2001:db8:2::/48"},
		{addr("10.0.0.1:1"), nil, "10.0.0.1"},
		{addr("10.0.0.1:1"), []string{"198.51.100.7, unknown"}, "10.0.0.1"},
		{&net.UnixAddr{Name: "@", Net: "unix"}, []string{"198.51.100.7, 10.0.0.1"}, "198.51.100.7"},
		{&net.UnixAddr{Name: "@", Net: "unix"}, nil, ""},
		{addr("bufconn"), []string{"198.51.100.7"}, ""},
	} {
		md := metadata.MD{"x-forwarded-for": c.forwarded}
		key, err := trusting.Of(metadata.NewIncomingContext(from(t, c.peer), md), unaryCall)
		require.Equal(t, c.want, key)
		require.Equal(t, c.want == "", errors.Is(err, grpclimit.ErrNoIdentity))
	}
	for _, k := range []grpclimit.Key{
		grpclimit.ClientIP(nil), grpclimit.ClientIP([]string{"0.0.0.0/0"}), grpclimit.ClientIP([]string{"proxy"}),
		grpclimit.ClientIP([]string{"unix"}, nil), grpclimit.ClientIP([]string{"unix"}, grpclimit.IPv6Prefix(65)),
	} {
		_, err := k.Of(t.Context(), unaryCall)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	}
}

// A proxy on a Unix socket is trusted, whether gRPC or an http.Server accepts its connections.
func TestAProxyOnAUnixSocketIsTrusted(t *testing.T) {
	server := grpc.NewServer(unaryServer(t, bucket(t, ratelimit.PerDay(1)), grpclimit.WithKey(grpclimit.ClientIP([]string{"unix"}))))
	pb.RegisterTestServiceServer(server, &service{})
	behind := &http.Server{Handler: server, Protocols: new(http.Protocols), ReadHeaderTimeout: time.Minute}
	behind.Protocols.SetUnencryptedHTTP2(true)
	for address, serve := range map[string]func(net.Listener) error{"192.0.2.1": server.Serve, "192.0.2.2": behind.Serve} {
		listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
		require.NoError(t, err)
		t.Cleanup(server.Stop)
		t.Cleanup(func() { _ = behind.Close() })
		go func() { _ = serve(listener) }()
		client := dial(t, "unix://"+listener.Addr().String())
		require.Equal(t, codes.OK, call(t, client, "x-forwarded-for", address).code(), address)
		require.Equal(t, codes.ResourceExhausted, call(t, client, "x-forwarded-for", address).code(), address)
	}
}

func TestAValueOfMetadataIsHashed(t *testing.T) {
	key := func(k grpclimit.Key, ctx context.Context) string {
		t.Helper()
		key, err := k.Of(ctx, unaryCall)
		require.NoError(t, err)
		return key
	}
	incoming := metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-api-key", "abc", "x-other", "abc"))
	const hash = "ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0" // of abc, FIPS 180-2
	require.Equal(t, "apikey:x-api-key:"+hash, key(grpclimit.APIKey("x-api-key"), incoming))
	require.Equal(t, "apikey:x-api-key:"+hash, key(grpclimit.APIKey("X-API-Key"), incoming))
	require.Equal(t, "apikey:x-other:"+hash, key(grpclimit.APIKey("x-other"), incoming))
	outgoing := metadata.AppendToOutgoingContext(t.Context(), "x-api-key", "abc")
	require.Equal(t, "apikey:x-api-key:"+hash, key(grpclimit.OutgoingAPIKey("x-api-key"), outgoing))
	bearer := metadata.NewIncomingContext(t.Context(), metadata.Pairs("authorization", " bearer  abc "))
	require.Equal(t, "apikey:authorization:"+hash, key(grpclimit.APIKey("Authorization"), bearer), "without its scheme")
	known := grpclimit.KnownKeys(func(_ context.Context, key string) bool { return key == "xyz" })
	_, err := grpclimit.APIKey("x-api-key", known).Of(incoming, unaryCall)
	require.ErrorIs(t, err, grpclimit.ErrNoIdentity)

	for _, k := range []grpclimit.Key{grpclimit.APIKey("x-api-key"), grpclimit.OutgoingAPIKey("x-api-key")} {
		_, err := k.Of(t.Context(), unaryCall)
		require.ErrorIs(t, err, grpclimit.ErrNoIdentity)
	}
	_, err = grpclimit.APIKey("x-api-key").Of(outgoing, unaryCall)
	require.ErrorIs(t, err, grpclimit.ErrNoIdentity, "outgoing is not incoming")
	empty := metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-api-key", ""))
	_, err = grpclimit.APIKey("x-api-key").Of(empty, unaryCall)
	require.ErrorIs(t, err, grpclimit.ErrNoIdentity)
}

func TestSeveralValuesOfMetadataAreAnErrorThatEndsTheSearch(t *testing.T) {
	ctx := metadata.NewIncomingContext(from(t, addr("192.0.2.1:1")), metadata.Pairs("x-api-key", "canary-1", "x-api-key", "canary-2"))
	for _, k := range []grpclimit.Key{
		grpclimit.APIKey("x-api-key"),
		grpclimit.First(grpclimit.APIKey("x-api-key"), grpclimit.PeerIP()),
		grpclimit.Combined(grpclimit.PeerIP(), grpclimit.APIKey("x-api-key")),
	} {
		key, err := k.Of(ctx, unaryCall)
		require.ErrorIs(t, err, grpclimit.ErrAmbiguousIdentity)
		require.NotErrorIs(t, err, grpclimit.ErrNoIdentity)
		require.NotContains(t, err.Error(), "canary")
		require.Empty(t, key)
	}
}

type userKey struct{}

func user(ctx context.Context) string {
	name, _ := ctx.Value(userKey{}).(string)
	return name
}

func TestFirstTakesTheFirstThatAppliesAndKindsNeverMeet(t *testing.T) {
	k := grpclimit.First(grpclimit.User(user), grpclimit.APIKey("x-api-key"), grpclimit.PeerIP())
	ctx := from(t, addr("192.0.2.1:1"))
	key, err := k.Of(ctx, unaryCall)
	require.NoError(t, err)
	require.Equal(t, "192.0.2.1", key)

	posing := context.WithValue(ctx, userKey{}, "192.0.2.1")
	key, err = k.Of(posing, unaryCall)
	require.NoError(t, err)
	require.Equal(t, "user:192.0.2.1", key)

	for _, nobody := range []context.Context{t.Context(), context.WithValue(t.Context(), userKey{}, "")} {
		_, err = k.Of(nobody, unaryCall)
		require.ErrorIs(t, err, grpclimit.ErrNoIdentity)
	}
}

func TestNoTwoCombinationsMeet(t *testing.T) {
	combined := func(names ...string) string {
		var keys []grpclimit.Key
		for _, name := range names {
			keys = append(keys, grpclimit.User(func(context.Context) string { return name }))
		}
		key, err := grpclimit.Combined(keys...).Of(t.Context(), unaryCall)
		require.NoError(t, err)
		return key
	}
	seen := map[string][]string{}
	for _, names := range [][]string{{"a:b", "c"}, {"a", "b:c"}, {"a", "b", "c"}, {"a:1:b"}, {"a", "b"}, {"b", "a"}, {"a"}, {"3:a"}, {"6:user:a,"}, {"combined:6:user:a,"}} {
		key := combined(names...)
		require.NotContains(t, seen, key, "%q", names)
		seen[key] = names
	}
	require.Equal(t, "combined:8:user:a:b,6:user:c,", combined("a:b", "c"))

	each, err := grpclimit.Combined(grpclimit.Route(), grpclimit.Global()).Of(t.Context(), "/pkg.Service/Do")
	require.NoError(t, err)
	require.Equal(t, "combined:21:route:/pkg.Service/Do,6:global,", each)
}

func TestHealthChecksAndReflectionAreRecognized(t *testing.T) {
	for method, want := range map[string]bool{
		"/grpc.health.v1.Health/Check":                                   true,
		"/grpc.health.v1.Health/Watch":                                   true,
		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      true,
		"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": true,
		unaryCall:                                               false,
		"/evil/grpc.health.v1.Health/Check":                     false,
		"/grpc.health.v1.HealthOfOthers/Check":                  false,
		strings.TrimPrefix("/grpc.health.v1.Health/Check", "/"): false,
		"/grpc.reflections.v1.Reflection/ListEverything":        false,
	} {
		require.Equal(t, want, grpclimit.HealthAndReflection(t.Context(), method), method)
	}
}

// A server answers no other spelling of a method, so that a caller has no second limit for one.
func TestOtherSpellingsOfAMethodAreNotServed(t *testing.T) {
	svc := &service{}
	byRoute := grpclimit.WithKey(grpclimit.Route())
	lim := bucket(t, ratelimit.PerHour(1))
	conn := dialConn(t, listen(t, svc, unaryServer(t, lim, byRoute), streamServer(t, lim, byRoute)))
	for _, method := range []string{pb.TestService_UnaryCall_FullMethodName, pb.TestService_FullDuplexCall_FullMethodName} {
		name := strings.TrimPrefix(method, "/")
		for _, spelt := range []string{
			method, name, "/" + method, "/./" + name, "/x/.." + method, method + "/", method + "?x", strings.Replace(method, "/UnaryCall", "//UnaryCall", 1),
			strings.ToLower(method), strings.Replace(method, "Call", "%43all", 1), method, name,
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, spelt)
			if err == nil {
				_ = stream.SendMsg(&pb.SimpleRequest{})
				_ = stream.CloseSend()
				_ = stream.RecvMsg(&pb.SimpleResponse{}) // its handler has ended then, if there is one
			}
			cancel()
		}
	}
	require.EqualValues(t, 2, svc.calls.Load(), "one of each method")
}
