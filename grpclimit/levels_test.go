package grpclimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/accesslist"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/grpclimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

func TestEachOfSeveralLimitsIsToldOverLoopback(t *testing.T) {
	mem, err := memstore.New(memstore.WithClock(func() time.Time { return start }))
	require.NoError(t, err)
	second, err := ratelimit.NewFixedWindow(mem, ratelimit.PerSecond(2), ratelimit.WithName("api"), ratelimit.WithPolicyName("api/s"))
	require.NoError(t, err)
	hour, err := ratelimit.NewFixedWindow(mem, ratelimit.PerHour(3), ratelimit.WithName("api"), ratelimit.WithPolicyName("api/h"))
	require.NoError(t, err)
	levels, err := ratelimit.NewAll(second, hour)
	require.NoError(t, err)
	client := dial(t, listen(t, &service{}, unaryServer(t, levels)))

	a := call(t, client)
	require.Equal(t, codes.OK, a.code())
	require.Equal(t, []string{`"api/s";q=2;w=1,"api/h";q=3;w=3600`}, a.header["ratelimit-policy"])
	require.Equal(t, []string{`"api/s";r=1;t=1,"api/h";r=2;t=3600`}, a.header["ratelimit"])

	require.Equal(t, codes.OK, call(t, client).code())
	a = call(t, client)
	require.Equal(t, codes.ResourceExhausted, a.code())
	require.Equal(t, time.Second, a.retryInfo())
	require.Equal(t, []string{"api/s"}, a.quotas())
}

func TestAtNothingLeftTheTimeIsThatToTheNextPlace(t *testing.T) {
	mem, err := memstore.New(memstore.WithClock(func() time.Time { return start }))
	require.NoError(t, err)
	lim, err := ratelimit.NewTokenBucket(mem, ratelimit.PerMinute(2))
	require.NoError(t, err)
	client := dial(t, listen(t, &service{}, unaryServer(t, lim)))
	require.Equal(t, []string{`"2/m";r=1;t=30`}, call(t, client).header["ratelimit"])
	require.Equal(t, []string{`"2/m";r=0;t=30`}, call(t, client).header["ratelimit"])
	require.Equal(t, []string{`"2/m";r=0;t=30`}, call(t, client).header["ratelimit"])
}

// Of parts of all kinds only those are reported that have counted.
func TestOfMixedPartsOnlyThoseThatCountedAreReported(t *testing.T) {
	mem, err := memstore.New(memstore.WithClock(func() time.Time { return start }))
	require.NoError(t, err)
	named := func(name string, l ratelimit.Limit) ratelimit.Limiter {
		return bucketOn(t, mem, l, ratelimit.WithName(name))
	}
	open, err := fallback.New(bucketOn(t, failing{}, ratelimit.PerHour(3)), fallback.FailOpen())
	require.NoError(t, err)
	unlimited, real, full := named("unlimited", ratelimit.Unlimited()), named("real", ratelimit.PerHour(100)), named("full", ratelimit.PerHour(1))
	_, err = full.Allow(t.Context(), "127.0.0.1")
	require.NoError(t, err)
	exempt := listed(t, accesslist.Lists{Allow: list(t, "127.0.0.1")})
	banned := listed(t, accesslist.Lists{Deny: list(t, "127.0.0.1")})
	for _, c := range []struct {
		parts             []ratelimit.Limiter
		code              codes.Code
		policies, numbers []string
	}{
		{[]ratelimit.Limiter{unlimited, real, exempt}, codes.OK, []string{`"real";q=100;w=3600`}, []string{`"real";r=99;t=36`}},
		{[]ratelimit.Limiter{exempt, unlimited}, codes.OK, nil, nil},
		{[]ratelimit.Limiter{open, unlimited}, codes.OK, nil, nil},
		{[]ratelimit.Limiter{unlimited, full, real}, codes.ResourceExhausted, []string{`"full";q=1;w=3600,"real";q=100;w=3600`}, []string{`"full";r=0;t=3600,"real";r=100`}},
		{[]ratelimit.Limiter{unlimited, real, banned}, codes.PermissionDenied, nil, nil},
		{[]ratelimit.Limiter{banned, full, unlimited}, codes.PermissionDenied, nil, nil},
	} {
		all, err := ratelimit.NewAll(c.parts...)
		require.NoError(t, err)
		require.NoError(t, real.Reset(t.Context(), "127.0.0.1"))
		var d grpclimit.Decision
		keep := func(ctx context.Context) error {
			d, _ = grpclimit.FromContext(ctx)
			return nil
		}
		a := call(t, dial(t, listen(t, &service{unary: keep}, unaryServer(t, all, grpclimit.WithContext()))))
		require.Equal(t, c.code, a.code())
		require.Equal(t, c.policies, a.header["ratelimit-policy"])
		require.Equal(t, c.numbers, a.header["ratelimit"])
		if a.code() == codes.OK {
			require.Equal(t, c.policies, grpclimit.Metadata(d)["ratelimit-policy"])
			require.Equal(t, c.numbers, grpclimit.Metadata(d)["ratelimit"])
		}
	}
}

func TestMetadataIsOfALaterResult(t *testing.T) {
	lim := bucket(t, ratelimit.PerMinute(60))
	local, err := fallback.New(bucketOn(t, failing{}, ratelimit.PerHour(100)), fallback.FailTo(bucket(t, ratelimit.PerHour(2))))
	require.NoError(t, err)
	client := dial(t, listen(t, &service{}, unaryServer(t, lim, grpclimit.WithContext()),
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			d, _ := grpclimit.FromContext(ctx)
			d.Result, err = lim.AllowN(ctx, d.Key, 59)
			require.NoError(t, err)
			require.Equal(t, []string{`"60/m";r=0;t=1`}, grpclimit.Metadata(d)["ratelimit"], "the next place, not the reset")

			before := d.Policies[0]
			d.Result, err = local.Allow(ctx, d.Key)
			require.NoError(t, err)
			require.Equal(t, []string{`"60/m";q=2`}, grpclimit.Metadata(d)["ratelimit-policy"])
			require.Equal(t, before, d.Policies[0], "which is the handler's")
			d = grpclimit.NewDecision(ctx, local, d.Key, d.Result)
			require.Equal(t, []string{`"100/h";q=2;w=3600`}, grpclimit.Metadata(d)["ratelimit-policy"])
			return handler(ctx, req)
		})))
	require.Equal(t, codes.OK, call(t, client).code())
}

func TestMetadataIsWhatAnInterceptorSends(t *testing.T) {
	for _, limit := range []ratelimit.Limit{ratelimit.PerMinute(2), ratelimit.PerHour(0), ratelimit.Unlimited()} {
		lim := bucket(t, limit)
		client := dial(t, listen(t, &service{}, unaryServer(t, lim, grpclimit.WithContext(), grpclimit.WithDeniedHandler(
			func(ctx context.Context, _ string, d grpclimit.Decision) error {
				_ = grpc.SetTrailer(ctx, grpclimit.Metadata(d))
				return grpclimit.DeniedStatus(d).Err()
			})), grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			d, _ := grpclimit.FromContext(ctx)
			require.Equal(t, grpclimit.Metadata(d), grpclimit.Metadata(grpclimit.NewDecision(ctx, lim, d.Key, d.Result)))
			_ = grpc.SetTrailer(ctx, grpclimit.Metadata(d))
			return handler(ctx, req)
		})))
		for range 3 {
			a := call(t, client)
			for _, key := range []string{"ratelimit", "ratelimit-policy", "retry-after"} {
				require.Equal(t, a.header[key], a.trailer[key])
			}
		}
	}
}

func TestThePolicyOfALocalLimiterHasItsWindow(t *testing.T) {
	local, err := fallback.New(bucketOn(t, failing{}, ratelimit.PerHour(100)), fallback.FailTo(bucket(t, ratelimit.PerHour(2))))
	require.NoError(t, err)
	client := dial(t, listen(t, &service{}, unaryServer(t, local)))
	require.Equal(t, []string{`"100/h";q=2;w=3600`}, call(t, client).header["ratelimit-policy"])
}
