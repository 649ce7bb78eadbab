package grpclimit_test

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

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
		{&net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 7}, "ip:192.0.2.1"},
		{&net.TCPAddr{IP: net.IPv4(192, 0, 2, 1).To4(), Port: 8}, "ip:192.0.2.1"},
		{&net.TCPAddr{IP: net.ParseIP("::ffff:192.0.2.1")}, "ip:192.0.2.1"},
		{&net.TCPAddr{IP: net.ParseIP("2001:db8:1:2:3:4:5:6")}, "ip:2001:db8:1:2::/64"},
		{&net.TCPAddr{IP: net.ParseIP("2001:db8:1:2:ffff::1")}, "ip:2001:db8:1:2::/64"},
		{&net.TCPAddr{IP: net.ParseIP("fe80::1"), Zone: "eth0"}, "ip:fe80::/64"},
		{addr("192.0.2.1:7"), "ip:192.0.2.1"},
		{addr("[2001:db8::1%eth0]:7"), "ip:2001:db8::/64"},
		{addr("[::ffff:192.0.2.1%eth0]:7"), "ip:192.0.2.1"},
		{addr("192.0.2.1"), "ip:192.0.2.1"},
	} {
		key, err := grpclimit.PeerIP(from(t, c.addr), unaryCall)
		require.NoError(t, err)
		require.Equal(t, c.want, key, c.addr.String())
	}
	for bits, want := range map[int]string{32: "ip:2001:db8::/32", 48: "ip:2001:db8:1::/48", 64: "ip:2001:db8:1:2::/64"} {
		key, err := grpclimit.PeerPrefix(bits)(from(t, addr("[2001:db8:1:2::3]:7")), unaryCall)
		require.NoError(t, err)
		require.Equal(t, want, key)
	}
}

func TestAPeerWithoutAnAddressHasNoIdentity(t *testing.T) {
	for _, ctx := range []context.Context{
		t.Context(), from(t, nil), from(t, &net.TCPAddr{}), from(t, &net.UnixAddr{Name: "@", Net: "unix"}), from(t, addr("bufconn")), from(t, addr("")),
	} {
		_, err := grpclimit.PeerIP(ctx, unaryCall)
		require.ErrorIs(t, err, grpclimit.ErrNoIdentity)
	}
}

func TestAValueOfMetadataIsHashed(t *testing.T) {
	key := func(f grpclimit.KeyFunc, ctx context.Context) string {
		t.Helper()
		key, err := f(ctx, unaryCall)
		require.NoError(t, err)
		return key
	}
	incoming := metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-api-key", "abc", "x-other", "abc"))
	const hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" // of abc, FIPS 180-2
	require.Equal(t, "metadata:x-api-key:"+hash, key(grpclimit.Metadata("x-api-key"), incoming))
	require.Equal(t, "metadata:x-api-key:"+hash, key(grpclimit.Metadata("X-API-Key"), incoming))
	require.Equal(t, "metadata:x-other:"+hash, key(grpclimit.Metadata("x-other"), incoming))
	outgoing := metadata.AppendToOutgoingContext(t.Context(), "x-api-key", "abc")
	require.Equal(t, "metadata:x-api-key:"+hash, key(grpclimit.OutgoingMetadata("x-api-key"), outgoing))
	authority := metadata.NewIncomingContext(t.Context(), metadata.MD{":authority": {"abc"}})
	require.Equal(t, "metadata::authority:"+hash, key(grpclimit.Metadata(":authority"), authority))

	for _, f := range []grpclimit.KeyFunc{grpclimit.Metadata("x-api-key"), grpclimit.OutgoingMetadata("x-api-key")} {
		_, err := f(t.Context(), unaryCall)
		require.ErrorIs(t, err, grpclimit.ErrNoIdentity)
	}
	_, err := grpclimit.Metadata("x-api-key")(outgoing, unaryCall)
	require.ErrorIs(t, err, grpclimit.ErrNoIdentity, "outgoing is not incoming")
	empty := metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-api-key", ""))
	_, err = grpclimit.Metadata("x-api-key")(empty, unaryCall)
	require.ErrorIs(t, err, grpclimit.ErrNoIdentity)
}

func TestSeveralValuesOfMetadataAreAnErrorThatEndsTheSearch(t *testing.T) {
	ctx := metadata.NewIncomingContext(from(t, addr("192.0.2.1:1")), metadata.Pairs("x-api-key", "canary-1", "x-api-key", "canary-2"))
	for _, f := range []grpclimit.KeyFunc{
		grpclimit.Metadata("x-api-key"),
		grpclimit.First(grpclimit.Metadata("x-api-key"), grpclimit.PeerIP),
		grpclimit.Combined(grpclimit.PeerIP, grpclimit.Metadata("x-api-key")),
	} {
		key, err := f(ctx, unaryCall)
		require.ErrorIs(t, err, grpclimit.ErrAmbiguousIdentity)
		require.NotErrorIs(t, err, grpclimit.ErrNoIdentity)
		require.NotContains(t, err.Error(), "canary")
		require.Empty(t, key)
	}
}

type userKey struct{}

func user(ctx context.Context) (string, bool) {
	name, ok := ctx.Value(userKey{}).(string)
	return name, ok
}

func TestFirstTakesTheFirstThatAppliesAndKindsNeverMeet(t *testing.T) {
	f := grpclimit.First(grpclimit.User(user), grpclimit.Metadata("x-api-key"), grpclimit.PeerIP)
	ctx := from(t, addr("192.0.2.1:1"))
	key, err := f(ctx, unaryCall)
	require.NoError(t, err)
	require.Equal(t, "ip:192.0.2.1", key)

	posing := context.WithValue(ctx, userKey{}, "192.0.2.1")
	key, err = f(posing, unaryCall)
	require.NoError(t, err)
	require.Equal(t, "user:192.0.2.1", key)

	for _, nobody := range []context.Context{t.Context(), context.WithValue(t.Context(), userKey{}, "")} {
		_, err = f(nobody, unaryCall)
		require.ErrorIs(t, err, grpclimit.ErrNoIdentity)
	}
}

func TestNoTwoCombinationsMeet(t *testing.T) {
	combined := func(names ...string) string {
		var fs []grpclimit.KeyFunc
		for _, name := range names {
			fs = append(fs, func(context.Context, string) (string, error) { return name, nil })
		}
		key, err := grpclimit.Combined(fs...)(t.Context(), unaryCall)
		require.NoError(t, err)
		return key
	}
	seen := map[string][]string{}
	for _, names := range [][]string{{"a:b", "c"}, {"a", "b:c"}, {"a", "b", "c"}, {"a:1:b"}, {"a", "b"}, {"", "a"}, {"a", ""}, {"a"}, {"3:a"}, {"all:1:a"}} {
		key := combined(names...)
		require.NotContains(t, seen, key, "%q", names)
		seen[key] = names
	}
	require.Equal(t, "all:3:a:b:1:c", combined("a:b", "c"))

	each, err := grpclimit.Combined(grpclimit.Method, grpclimit.Global)(t.Context(), "/pkg.Service/Do")
	require.NoError(t, err)
	require.Equal(t, "all:22:method:/pkg.Service/Do:6:global", each)
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
