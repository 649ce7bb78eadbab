package grpclimit_test

import (
	"context"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/accesslist"
	"github.com/ratelimit-go/ratelimit/clientaddr"
	"github.com/ratelimit-go/ratelimit/grpclimit"
)

// listed puts lists around a limit of 1,000 an hour.
func listed(t testing.TB, lists accesslist.Lists) *accesslist.Limiter {
	t.Helper()
	lim, err := accesslist.New(bucket(t, ratelimit.PerHour(1000)), accesslist.WithLists(lists))
	require.NoError(t, err)
	return lim
}

func list(t testing.TB, entries ...string) *accesslist.List {
	t.Helper()
	l, err := accesslist.NewList(entries...)
	require.NoError(t, err)
	return l
}

// requireVerdict checks the answer to a client that is on the deny list, on the allow list or on
// neither.
func requireVerdict(t *testing.T, a answer, verdict string) {
	t.Helper()
	switch verdict {
	case "denied":
		require.Equal(t, codes.PermissionDenied, a.code())
		require.Empty(t, a.status.Details())
	case "allowed":
		require.Equal(t, codes.OK, a.code())
	default:
		require.Equal(t, codes.OK, a.code())
		require.NotEmpty(t, a.header["ratelimit"])
		return
	}
	for _, key := range []string{"ratelimit", "ratelimit-policy", "retry-after"} {
		require.Empty(t, a.header[key], key)
	}
}

var (
	apiKey   = grpclimit.APIKey("x-api-key")
	clientIP = grpclimit.ClientIP([]string{"127.0.0.0/8", "::1"})
	ann      = grpclimit.User(func(context.Context) string { return "ann" })
	device   = grpclimit.KeyFunc("device", func(context.Context, string) (string, error) { return "2001:db8:66::66", nil })
)

func TestListsHoldBehindEveryKindOfKey(t *testing.T) {
	byOption := grpclimit.WithClientAddr(clientIP)
	for name, opts := range map[string][]grpclimit.ServerOption{
		"ClientIP":             {grpclimit.WithKey(clientIP)},
		"First":                {grpclimit.WithKey(grpclimit.First(apiKey, clientIP))},
		"First, the address":   {grpclimit.WithKey(grpclimit.First(grpclimit.APIKey("x-other"), clientIP))},
		"Combined":             {grpclimit.WithKey(grpclimit.Combined(ann, clientIP))},
		"Combined in a First":  {grpclimit.WithKey(grpclimit.First(ann, grpclimit.Combined(grpclimit.Route(), clientIP)))},
		"PeerIP":               {byOption},
		"APIKey":               {grpclimit.WithKey(apiKey), byOption},
		"User":                 {grpclimit.WithKey(ann), byOption},
		"KeyFunc":              {grpclimit.WithKey(device), byOption},
		"Route":                {grpclimit.WithKey(grpclimit.Route()), byOption},
		"Global":               {grpclimit.WithKey(grpclimit.Global()), byOption},
		"with the decision":    {grpclimit.WithKey(ann), byOption, grpclimit.WithContext()},
		"the option, combined": {grpclimit.WithKey(ann), grpclimit.WithClientAddr(grpclimit.First(ann, clientIP))},
	} {
		t.Run(name, func(t *testing.T) {
			lim := listed(t, accesslist.Lists{
				Deny:  list(t, "203.0.113.66", "2001:db8:66::66"),
				Allow: list(t, "203.0.113.0/24", "2001:db8::/32"),
			})
			client := dial(t, listen(t, &service{}, unaryServer(t, lim, opts...)))
			for addr, verdict := range map[string]string{
				"203.0.113.66": "denied", "::ffff:203.0.113.66": "denied", "64:ff9b::203.0.113.66": "denied", "2001:db8:66::66": "denied",
				"203.0.113.7": "allowed", "64:ff9b::203.0.113.7": "allowed", "2001:db8:66::67": "allowed",
				"198.51.100.1": "limited", "2001:db9::1": "limited",
				"": "limited", // the proxy itself
			} {
				requireVerdict(t, call(t, client, "x-forwarded-for", addr, "x-api-key", "abc"), verdict)
			}
			lim.Replace(accesslist.Lists{})
			requireVerdict(t, call(t, client, "x-forwarded-for", "203.0.113.66", "x-api-key", "abc"), "limited")
		})
	}
}

func TestListsHoldForThePeer(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		for _, opts := range [][]grpclimit.ServerOption{
			nil,
			{grpclimit.WithKey(grpclimit.First(apiKey, grpclimit.PeerIP()))},
			{grpclimit.WithKey(ann), grpclimit.WithClientAddr(grpclimit.PeerIP())},
		} {
			lim := listed(t, accesslist.Lists{Deny: list(t, host)})
			server := grpc.NewServer(unaryServer(t, lim, opts...))
			pb.RegisterTestServiceServer(server, &service{})
			listener := listenOn(t, host)
			go func() { _ = server.Serve(listener) }()
			t.Cleanup(server.Stop)
			client := dial(t, listener.Addr().String())
			requireVerdict(t, call(t, client, "x-api-key", "abc", "x-forwarded-for", "198.51.100.1"), "denied")
			lim.Replace(accesslist.Lists{Allow: list(t, host)})
			requireVerdict(t, call(t, client, "x-api-key", "abc"), "allowed")
			lim.Replace(accesslist.Lists{Deny: list(t, "198.51.100.1")})
			requireVerdict(t, call(t, client, "x-api-key", "abc", "x-forwarded-for", "198.51.100.1"), "limited")
		}
	}
}

func TestEachMessageOfAStreamIsOfItsClient(t *testing.T) {
	lim := listed(t, accesslist.Lists{Deny: list(t, "192.0.2.1")})
	stop := func(stream grpc.BidiStreamingServer[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse]) error {
		lim.Replace(accesslist.Lists{Deny: list(t, "127.0.0.1")})
		return echo(stream)
	}
	client := dial(t, listen(t, &service{duplex: stop}, streamServer(t, lim, grpclimit.WithKey(grpclimit.First(ann, clientIP)), grpclimit.WithMessages())))
	require.Equal(t, codes.PermissionDenied, converse(t, client, 1).code())
}

func TestAnAddressThatNoKeyHasIsAnError(t *testing.T) {
	lim := listed(t, accesslist.Lists{Deny: list(t, "192.0.2.0/24")})
	var got error
	client := dial(t, listen(t, &service{}, unaryServer(t, lim, grpclimit.WithKey(ann))))
	require.Equal(t, codes.Internal, call(t, client).code())
	client = dial(t, listen(t, &service{}, unaryServer(t, lim, grpclimit.WithKey(ann), grpclimit.WithErrorHandler(
		func(_ context.Context, _ string, err error) error {
			got = err
			return grpclimit.ErrorStatus(err).Err()
		}))))
	require.Equal(t, codes.Internal, call(t, client).code())
	require.ErrorIs(t, got, accesslist.ErrNoAddr)

	for _, k := range []grpclimit.Key{ann, grpclimit.Combined(ann, apiKey), grpclimit.First(grpclimit.Global()), {}} {
		_, err := grpclimit.UnaryServerInterceptor(lim, grpclimit.WithClientAddr(k))
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	}
}

// If two interceptors are nested, each uses the address that it finds, unless it has none, and an
// address in the context takes precedence. The handler gets that of the inner one.
func TestInterceptorsAroundEachOtherHaveTheirOwnAddresses(t *testing.T) {
	saying := grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		return handler(clientaddr.NewContext(ctx, netip.MustParseAddr("203.0.113.66")), req)
	})
	deny := func(addr string, k grpclimit.Key) grpc.ServerOption {
		return unaryServer(t, listed(t, accesslist.Lists{Deny: list(t, addr)}), grpclimit.WithKey(k))
	}
	within := func(addr string) *service {
		lim := listed(t, accesslist.Lists{Deny: list(t, addr)})
		return &service{unary: func(ctx context.Context) error {
			r, err := lim.Allow(ctx, "user:ann")
			if err != nil || r.Allowed {
				return err
			}
			return grpclimit.DeniedStatus(grpclimit.Decision{Result: r}).Err()
		}}
	}
	peer := grpclimit.PeerIP()
	for _, c := range []struct {
		name string
		svc  *service
		opts []grpc.ServerOption
		want codes.Code
	}{
		{"the outer one's", &service{}, []grpc.ServerOption{deny("127.0.0.1", peer), deny("192.0.2.1", clientIP)}, codes.PermissionDenied},
		{"not the inner one's", &service{}, []grpc.ServerOption{deny("198.51.100.1", peer), deny("192.0.2.1", clientIP)}, codes.OK},
		{"the inner one's", &service{}, []grpc.ServerOption{deny("192.0.2.1", peer), deny("198.51.100.1", clientIP)}, codes.PermissionDenied},
		{"not the outer one's", &service{}, []grpc.ServerOption{deny("192.0.2.1", clientIP), deny("198.51.100.1", peer)}, codes.OK},
		{"handed on", &service{}, []grpc.ServerOption{deny("192.0.2.1", clientIP), deny("198.51.100.1", ann)}, codes.PermissionDenied},
		{"said", &service{}, []grpc.ServerOption{saying, deny("203.0.113.66", clientIP)}, codes.PermissionDenied},
		{"said, and so not the peer's", &service{}, []grpc.ServerOption{saying, deny("127.0.0.1", peer)}, codes.OK},
		{"to the handler", within("198.51.100.1"), []grpc.ServerOption{deny("192.0.2.1", clientIP)}, codes.PermissionDenied},
		{"to a handler without any", within("198.51.100.1"), []grpc.ServerOption{unaryServer(t, bucket(t, ratelimit.PerHour(9)), grpclimit.WithKey(ann))}, codes.Unknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := dial(t, listen(t, c.svc, c.opts...))
			require.Equal(t, c.want, call(t, client, "x-forwarded-for", "198.51.100.1").code())
		})
	}
}

func TestADenialByAListCanBeAnsweredInOtherWays(t *testing.T) {
	lim := listed(t, accesslist.Lists{Deny: list(t, "127.0.0.1")})
	client := dial(t, listen(t, &service{}, unaryServer(t, lim, grpclimit.WithDeniedHandler(
		func(_ context.Context, _ string, d grpclimit.Decision) error {
			require.Equal(t, ratelimit.SourceList, d.Result.Source())
			return status.Error(codes.NotFound, "")
		}))))
	require.Equal(t, codes.NotFound, call(t, client).code())
}
