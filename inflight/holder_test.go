package inflight_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// After a Reset a slot may have the number of an earlier one. It is another all the same if
// somebody else holds it.
func TestNobodyRenewsOrGivesBackTheSlotOfSomebodyElse(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	now := time.Now()
	on := func(label string) *ratelimit.Custom {
		s, err := redisstore.New(client, redisstore.WithPrefix(t.Name()), redisstore.WithLabel(label), redisstore.WithTimeout(10*time.Second),
			redisstore.WithClock(func() time.Time { return now }))
		require.NoError(t, err)
		l, err := inflight.New(s, 1, time.Minute, ratelimit.WithName("exports"))
		require.NoError(t, err)
		return l
	}
	take := func(l *ratelimit.Custom) ratelimit.Result {
		r, err := l.Allow(t.Context(), "key")
		require.NoError(t, err)
		require.True(t, r.Allowed)
		return r
	}
	a, b := on("a"), on("b")
	ofA := take(a)
	require.NoError(t, a.Reset(t.Context(), "key"))
	ofB := take(b)
	require.Equal(t, a.ChargedAt(ofA), b.ChargedAt(ofB))
	r, err := a.Renew(t.Context(), "key", ofA)
	require.NoError(t, err)
	require.False(t, r.Allowed)
	require.NoError(t, a.Refund(t.Context(), "key", ofA, 1))
	require.Zero(t, free(t, a))
	r, err = b.Renew(t.Context(), "key", ofB)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.NoError(t, b.Refund(t.Context(), "key", ofB, 1))
	require.Equal(t, 1, free(t, b))
}

// The script that decides on several limits names slots as that of one does.
func TestASlotThatIsTakenWithOthersIsRenewedAlone(t *testing.T) {
	s, err := redisstore.New(redistest.Shared(t).Client(t), redisstore.WithPrefix(t.Name()), redisstore.WithLabel("a label"), redisstore.WithTimeout(10*time.Second))
	require.NoError(t, err)
	each, total := slots(t, s, 1, ratelimit.WithName("each")), slots(t, s, 2, ratelimit.WithName("total"))
	all, err := ratelimit.NewAll(each, total)
	require.NoError(t, err)
	charged, err := all.Allow(t.Context(), "key")
	require.NoError(t, err)
	require.True(t, charged.Allowed)
	for i, l := range []*ratelimit.Custom{each, total} {
		r, err := l.Renew(t.Context(), "key", charged.Parts()[i].Result)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.Equal(t, l.ChargedAt(charged.Parts()[i].Result), l.ChargedAt(r), "the same slot")
	}
	require.NoError(t, all.Refund(t.Context(), "key", charged, 1))
	require.Equal(t, 1, free(t, each))
	require.Equal(t, 2, free(t, total))
}
