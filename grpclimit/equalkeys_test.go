package grpclimit_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/grpclimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

// pair is a Key of each package that means the same.
type pair struct {
	http httplimit.Key
	grpc grpclimit.Key
}

var (
	proxies = []string{"127.0.0.0/8", "::1"}
	secret  = []byte("0123456789abcdef")
	users   = pair{
		httplimit.User(func(r *http.Request) string { return r.Header.Get("Test-User") }),
		grpclimit.User(user),
	}
	apiKeys = pair{httplimit.APIKey("X-API-Key"), grpclimit.APIKey("x-api-key")}
	tenants = pair{
		httplimit.KeyFunc("tenant", func(*http.Request) (string, error) { return "7", nil }),
		grpclimit.KeyFunc("tenant", func(context.Context, string) (string, error) { return "7", nil }),
	}
	pairs = map[string]pair{
		"the default":         {httplimit.PeerIP(), grpclimit.PeerIP()},
		"no proxy in between": {httplimit.ClientIP([]string{"10.0.0.0/8"}), grpclimit.PeerIP()},
		"proxies":             {httplimit.ClientIP(proxies), grpclimit.ClientIP(proxies)},
		"an IPv4 prefix":      {httplimit.PeerIP(httplimit.IPv4Prefix(24)), grpclimit.PeerIP(grpclimit.IPv4Prefix(24))},
		"a prefix":            {httplimit.PeerIP(httplimit.IPv6Prefix(48)), grpclimit.PeerIP(grpclimit.IPv6Prefix(48))},
		"an API key":          apiKeys,
		"a bearer token":      {httplimit.APIKey("Authorization"), grpclimit.APIKey("Authorization")},
		"an HMAC": {
			httplimit.APIKey("X-API-Key", httplimit.HashedWith(secret)),
			grpclimit.APIKey("X-API-Key", grpclimit.HashedWith(secret)),
		},
		"a user":              users,
		"a route":             {httplimit.Route(), grpclimit.Route()},
		"all requests":        {httplimit.Global(), grpclimit.Global()},
		"a function":          tenants,
		"a combination":       {httplimit.Combined(users.http, httplimit.Route()), grpclimit.Combined(users.grpc, grpclimit.Route())},
		"one of combinations": {httplimit.Combined(tenants.http, httplimit.Combined(httplimit.PeerIP(), apiKeys.http)), grpclimit.Combined(tenants.grpc, grpclimit.Combined(grpclimit.PeerIP(), apiKeys.grpc))},
		"the first of some":   {httplimit.First(users.http, httplimit.PeerIP()), grpclimit.First(users.grpc, grpclimit.PeerIP())},
		"the first of others": {httplimit.First(httplimit.APIKey("X-Other"), httplimit.PeerIP()), grpclimit.First(grpclimit.APIKey("X-Other"), grpclimit.PeerIP())},
	}
)

func TestOneLimiterBehindHTTPAndGRPCCountsAClientOnce(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		for name, keys := range pairs {
			t.Run(name+" from "+host, func(t *testing.T) {
				lim := &recorder{Limiter: bucket(t, ratelimit.PerDay(2))}
				overHTTP, overGRPC := servers(t, host, lim, keys)
				require.Equal(t, http.StatusOK, overHTTP("ann"))
				require.Equal(t, codes.OK, overGRPC("ann"))
				require.Equal(t, http.StatusTooManyRequests, overHTTP("ann"))
				require.Equal(t, codes.ResourceExhausted, overGRPC("ann"))
				require.Len(t, lim.asked(), 4)
				for _, key := range lim.asked() {
					require.Equal(t, lim.asked()[0], key)
				}
			})
		}
	}
}

func TestKeysOfDifferentKindsAreNeverEqual(t *testing.T) {
	text := func(context.Context, string) (string, error) { return "192.0.2.1", nil }
	ctx := metadata.NewIncomingContext(from(t, addr("192.0.2.1:1")), metadata.Pairs("x-api-key", "192.0.2.1", "x-other", "192.0.2.1", "authorization", "Bearer 192.0.2.1"))
	ctx = context.WithValue(ctx, userKey{}, "192.0.2.1")
	kinds := []grpclimit.Key{
		grpclimit.PeerIP(), grpclimit.APIKey("x-api-key"), grpclimit.APIKey("x-other"), grpclimit.APIKey("authorization"),
		grpclimit.APIKey("x-api-key", grpclimit.HashedWith(secret)), grpclimit.User(user), grpclimit.Route(), grpclimit.Global(),
		grpclimit.KeyFunc("tenant", text), grpclimit.KeyFunc("x-api-key", text), grpclimit.KeyFunc("apikey", text), grpclimit.KeyFunc("ip", text),
	}
	for i := range kinds {
		kinds = append(kinds, grpclimit.Combined(kinds[i]), grpclimit.Combined(kinds[i], kinds[0]), grpclimit.Combined(kinds[0], kinds[i], kinds[i]))
	}
	seen := map[string]bool{}
	for i, k := range kinds {
		key, err := k.Of(ctx, "192.0.2.1")
		require.NoError(t, err)
		_, notAddress := netip.ParseAddr(key)
		require.Equal(t, i > 0, notAddress != nil, "an access list reads only the first as an address: %s", key)
		require.False(t, seen[key], key)
		seen[key] = true
	}
}

// servers puts lim in front of an HTTP server and of a gRPC server. It returns a call of
// each by a user, with the API key of that name.
func servers(t *testing.T, host string, lim ratelimit.Limiter, keys pair) (overHTTP func(user string) int, overGRPC func(user string) codes.Code) {
	t.Helper()
	limited, err := httplimit.New(lim, httplimit.WithKey(keys.http))
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.Handle(unaryCall, limited(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	server := httptest.NewUnstartedServer(mux)
	_ = server.Listener.Close()
	server.Listener = listenOn(t, host)
	server.Start()
	t.Cleanup(server.Close)

	authenticate := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		return handler(context.WithValue(ctx, userKey{}, metadata.ValueFromIncomingContext(ctx, "test-user")[0]), req)
	}
	grpcServer := grpc.NewServer(grpc.ChainUnaryInterceptor(authenticate), unaryServer(t, lim, grpclimit.WithKey(keys.grpc)))
	pb.RegisterTestServiceServer(grpcServer, &service{})
	listener := listenOn(t, host)
	go func() { _ = grpcServer.Serve(listener) }()
	t.Cleanup(grpcServer.Stop)
	client := dial(t, listener.Addr().String())

	overHTTP = func(user string) int {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+unaryCall, nil)
		require.NoError(t, err)
		r.Header.Set("Test-User", user)
		r.Header.Set("X-API-Key", "key of "+user)
		r.Header.Set("X-Forwarded-For", forwarded)
		r.Header.Set("Authorization", "Bearer key of "+user)
		res, err := server.Client().Do(r)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		return res.StatusCode
	}
	overGRPC = func(user string) codes.Code {
		return call(t, client, "test-user", user, "x-api-key", "key of "+user, "x-forwarded-for", forwarded, "authorization", "bearer key of "+user).code()
	}
	return overHTTP, overGRPC
}

const forwarded = "192.0.2.1, 2001:db8:1:2::3, 127.0.0.2"

func TestTheHashOfAnAPIKeyIsTheSameInBothPackages(t *testing.T) {
	for name, secret := range map[string][]byte{"x-api-key": nil, "X-API-Key": secret, "Authorization": nil} {
		var overHTTP []httplimit.APIKeyOption
		var overGRPC []grpclimit.APIKeyOption
		if secret != nil {
			overHTTP, overGRPC = append(overHTTP, httplimit.HashedWith(secret)), append(overGRPC, grpclimit.HashedWith(secret))
		}
		want, err := grpclimit.APIKey(name, overGRPC...).Of(metadata.NewIncomingContext(t.Context(),
			metadata.Pairs("x-api-key", "abc", "authorization", "Bearer abc")), unaryCall)
		require.NoError(t, err)
		got, err := grpclimit.HashedAPIKey(name, "abc", overGRPC...)
		require.NoError(t, err)
		require.Equal(t, want, got)
		got, err = httplimit.HashedAPIKey(name, "abc", overHTTP...)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err := grpclimit.HashedAPIKey("x-api-key", "")
	require.ErrorIs(t, err, grpclimit.ErrNoIdentity)
	for _, f := range []func() (string, error){
		func() (string, error) { return grpclimit.HashedAPIKey("", "abc") },
		func() (string, error) { return grpclimit.HashedAPIKey("x", "abc", nil) },
		func() (string, error) { return grpclimit.HashedAPIKey("x", "abc", grpclimit.HashedWith(nil)) },
	} {
		_, err := f()
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	}
}

func listenOn(t *testing.T, host string) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil && host == "::1" {
		t.Skip("no IPv6 here")
	}
	require.NoError(t, err)
	return listener
}
