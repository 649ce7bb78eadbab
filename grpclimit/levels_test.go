package grpclimit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

func TestEachOfSeveralLimitsIsToldOverLoopback(t *testing.T) {
	mem, err := memstore.New(memstore.WithClock(func() time.Time { return start }))
	require.NoError(t, err)
	levels, err := ratelimit.NewLevels("fixed_window", mem, ratelimit.PerSecond(2), ratelimit.PerHour(3))
	require.NoError(t, err)
	client := dial(t, listen(t, &service{}, unaryServer(t, levels)))

	a := call(t, client)
	require.Equal(t, codes.OK, a.code())
	require.Equal(t, []string{`"2/s";q=2;w=1,"3/h";q=3;w=3600`}, a.header["ratelimit-policy"])
	require.Equal(t, []string{`"2/s";r=1;t=1,"3/h";r=2;t=3600`}, a.header["ratelimit"])

	require.Equal(t, codes.OK, call(t, client).code())
	a = call(t, client)
	require.Equal(t, codes.ResourceExhausted, a.code())
	require.Equal(t, time.Second, a.retryInfo())
	require.Equal(t, []string{"2/s"}, a.quotas())
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
