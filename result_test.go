package ratelimit_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
)

func TestAMarkIsFoundByItsOwnerAndTakenOff(t *testing.T) {
	type wrapper struct{ _ int }
	inner, outer, stranger := new(wrapper), new(wrapper), new(wrapper)
	note := "of outer"
	plain := allow(t, inMemory(t, "token_bucket", ratelimit.PerHour(5)), "key")
	first := ratelimit.NewMark(inner, ratelimit.SourceLocal, nil)
	second := ratelimit.NewMark(outer, ratelimit.SourceStore, &note)

	r := plain.WithMark(first).WithMark(second)
	require.Equal(t, ratelimit.SourceLocal, r.Source(), "SourceStore leaves it as it is")
	under, found, ok := r.Unmark(outer)
	require.True(t, ok)
	require.Same(t, &note, found)
	require.Equal(t, plain.WithMark(first), under)
	under, found, ok = r.Unmark(inner)
	require.True(t, ok, "also below another one")
	require.Nil(t, found)
	require.Equal(t, plain, under)
	for _, owner := range []any{stranger, nil, "outer"} {
		under, _, ok = r.Unmark(owner)
		require.False(t, ok)
		require.Equal(t, r, under)
	}
	require.Equal(t, plain, plain.WithMark(nil))
	once, again := plain.WithMark(first), plain.WithMark(first)
	require.True(t, once == again, "Results stay comparable")
	require.False(t, once == plain)
	require.Equal(t, ratelimit.SourceBan, plain.WithMark(ratelimit.NewMark(inner, 200, nil)).Source(), "there is no such source")
	require.Equal(t, "source(200)", ratelimit.Source(200).String())
}

func TestAMarkOnAPlainResultAllocatesNothing(t *testing.T) {
	owner := new(int)
	m := ratelimit.NewMark(owner, ratelimit.SourceStore, nil)
	plain := ratelimit.Result{Allowed: true}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if _, _, ok := plain.WithMark(m).Unmark(owner); !ok {
			t.Fail()
		}
	}))
}

func TestAResultSaysHowMuchItHasCharged(t *testing.T) {
	bucket := inMemory(t, "token_bucket", ratelimit.PerHour(5))
	unlimited := inMemory(t, "token_bucket", ratelimit.Unlimited())
	both := all(t, bucket, unlimited)
	require.Equal(t, 2, allowN(t, bucket, 2).Charged())
	require.Equal(t, 2, allowN(t, both, 2).Charged(), "of each limit")
	require.Zero(t, allowN(t, unlimited, 2).Charged())
	require.Zero(t, allowN(t, all(t, unlimited), 2).Parts()[0].Charged())
	require.Zero(t, peek(t, bucket, "key").Charged())
	require.Zero(t, peek(t, both, "key").Charged())
	require.Zero(t, allowN(t, bucket, 2).Charged(), "a denial")
	require.Zero(t, allowN(t, both, 2).Charged(), "a denial")
	open := failover(t, ratelimittest.Static(ratelimit.Result{}, ratelimit.ErrStore), fallback.FailOpen())
	require.Zero(t, allowN(t, open, 2).Charged())
	local := failover(t, ratelimittest.Static(ratelimit.Result{}, ratelimit.ErrStore), fallback.FailTo(inMemory(t, "token_bucket", ratelimit.PerHour(5))))
	require.Equal(t, 3, allowN(t, local, 3).Charged())
}

func TestAResultSaysWhetherALimitHasCounted(t *testing.T) {
	down := ratelimittest.Static(ratelimit.Result{}, ratelimit.ErrStore)
	for name, c := range map[string]struct {
		lim     ratelimit.Limiter
		source  ratelimit.Source
		counted bool
	}{
		"a bucket":           {inMemory(t, "token_bucket", ratelimit.PerHour(5)), ratelimit.SourceStore, true},
		"a rate of 0":        {inMemory(t, "token_bucket", ratelimit.PerHour(0)), ratelimit.SourceZeroRate, true},
		"several, one of 0":  {all(t, inMemory(t, "token_bucket", ratelimit.PerHour(5)), inMemory(t, "sliding_log", ratelimit.PerHour(0))), ratelimit.SourceZeroRate, true},
		"unlimited":          {inMemory(t, "token_bucket", ratelimit.Unlimited()), ratelimit.SourceUnlimited, false},
		"open":               {failover(t, down, fallback.FailOpen()), ratelimit.SourceFailOpen, false},
		"closed":             {failover(t, down, fallback.FailClosed()), ratelimit.SourceFailClosed, false},
		"local":              {failover(t, down, fallback.FailTo(inMemory(t, "token_bucket", ratelimit.PerHour(5)))), ratelimit.SourceLocal, true},
		"an answer":          {ratelimittest.Static(ratelimit.Result{Allowed: true}, nil), ratelimit.SourceStore, false},
		"one with a limit":   {ratelimittest.Static(ratelimit.Result{Allowed: true, Limit: 1}, nil), ratelimit.SourceStore, true},
		"a denial, likewise": {ratelimittest.Static(ratelimit.Result{RetryAfter: time.Second}, nil), ratelimit.SourceStore, true},
	} {
		r := allow(t, c.lim, "key")
		require.Equal(t, c.source, r.Source(), name)
		require.Equal(t, c.counted, r.Counted(), name)
	}
	require.Equal(t, ratelimit.Result{RetryAfter: ratelimit.Never}, allow(t, inMemory(t, "token_bucket", ratelimit.PerHour(0)), "key"),
		"a Rate of 0 needs no mark")
}

func TestAResultIsALineOfALog(t *testing.T) {
	down := ratelimittest.Static(ratelimit.Result{}, ratelimit.ErrStore)
	mem := memory(t, newClock())
	bucket := newLimiter(t, "token_bucket", mem, ratelimit.PerSecond(10))
	user := newLimiter(t, "fixed_window", mem, ratelimit.PerHour(2), ratelimit.WithName("per_user"))
	leaky := newLimiter(t, "leaky_bucket", mem, ratelimit.PerSecond(10))
	calls := newLimiter(t, "fixed_window", mem, ratelimit.PerHour(2), ratelimit.WithName("calls"), ratelimit.CountCalls())
	allowN(t, leaky, 1)
	for want, r := range map[string]ratelimit.Result{
		"denied":                                {},
		"allowed":                               {Allowed: true},
		"allowed, 7 of 10 left, reset in 300ms": allowN(t, bucket, 3),
		"denied, 7 of 10 left, retry after 100ms":                   allowN(t, bucket, 8),
		"denied, 7 of 10 left, never admitted":                      allowN(t, bucket, 11),
		"allowed, 8 of 10 left, delayed by 100ms, reset in 200ms":   allowN(t, leaky, 1),
		"denied (zero_rate), never admitted":                        allowN(t, newLimiter(t, "token_bucket", mem, ratelimit.PerSecond(0)), 1),
		"allowed (unlimited)":                                       allowN(t, newLimiter(t, "token_bucket", mem, ratelimit.Unlimited()), 1),
		"allowed (fail_open)":                                       allowN(t, failover(t, down, fallback.FailOpen()), 1),
		"denied (fail_closed), retry after 1s":                      allowN(t, failover(t, down, fallback.FailClosed()), 1),
		"allowed, 1 of 2 left, reset in 1h0m0s":                     allowN(t, all(t, bucket, user), 1),
		`denied by "per_user", 1 of 2 left, never admitted`:         allowN(t, all(t, bucket, user), 3),
		`denied by "per_user" (local), 1 of 2 left, retry after 1s`: allowN(t, failover(t, down, fallback.FailTo(all(t, bucket, user))), 3),
		`denied by "10/s", 6 of 10 left, retry after 200ms`:         allowN(t, all(t, bucket, calls), 8),
		"allowed, -1 of 3 left, reset in 2562047h47m16.854775807s":  {Allowed: true, Limit: 3, Remaining: -1, ResetAfter: ratelimit.Never, RetryAfter: -1},
	} {
		require.Equal(t, want, r.String())
		require.Equal(t, want, fmt.Sprint(r))
	}
}

// fallbackOfTheirOwn is what a third party can write: it lets events through when its
// limiter fails, and knows them again.
type fallbackOfTheirOwn struct {
	ratelimit.Limiter
	mark *ratelimit.Mark
}

func (f *fallbackOfTheirOwn) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	if err := store.CheckCall(ctx, key, n); err != nil {
		return ratelimit.Result{}, err
	}
	r, err := f.Limiter.AllowN(ctx, key, n)
	if err != nil {
		return ratelimit.Result{Allowed: true}.WithMark(f.mark), nil //nolint:nilerr // that is what it is for
	}
	return r, nil
}

func (f *fallbackOfTheirOwn) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	if _, _, mine := charged.Unmark(f); mine {
		return nil
	}
	return f.Limiter.Refund(ctx, key, charged, n)
}

func TestAThirdPartyCanWriteAFallback(t *testing.T) {
	bucket := inMemory(t, "token_bucket", ratelimit.PerHour(5))
	theirs := &fallbackOfTheirOwn{Limiter: bucket}
	theirs.mark = ratelimit.NewMark(theirs, ratelimit.SourceFailOpen, nil)
	whole := all(t, theirs, inMemory(t, "sliding_log", ratelimit.PerHour(9)))
	for _, inside := range []ratelimit.Limiter{bucket, ratelimittest.Static(ratelimit.Result{}, ratelimit.ErrStore)} {
		theirs.Limiter = inside
		r := allowN(t, whole, 3)
		require.True(t, r.Allowed)
		require.Equal(t, inside != bucket, r.Source() == ratelimit.SourceFailOpen)
		require.NoError(t, whole.Refund(t.Context(), "key", r, 3))
	}
	require.Equal(t, 5, peek(t, bucket, "key").Remaining)
}

func TestASourceThatIsNotKnownHasANumber(t *testing.T) {
	require.Equal(t, "ban", ratelimit.SourceBan.String())
	require.Equal(t, fmt.Sprintf("source(%d)", ratelimit.SourceBan+1), (ratelimit.SourceBan + 1).String())
}

func TestThePartsOfSeveralInsideOfOneAreItsOwn(t *testing.T) {
	mem := memory(t, newClock())
	inner := all(t, newLimiter(t, "token_bucket", mem, ratelimit.PerHour(5)), newLimiter(t, "fixed_window", mem, ratelimit.PerHour(9)))
	a := all(t, failover(t, inner, fallback.FailOpen()), failover(t, inner, fallback.FailOpen()))
	r := allowN(t, a, 1)
	require.Len(t, r.Parts(), 4)
	require.Equal(t, []int{4, 8}, []int{r.Parts()[0].Remaining, r.Parts()[1].Remaining})
}
