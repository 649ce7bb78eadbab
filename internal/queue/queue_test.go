package queue_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/queue"
)

func TestOfTwoLimitsTogetherNoMoreIsKnownThanOfEither(t *testing.T) {
	for _, c := range []struct{ a, b, want queue.Kind }{
		{queue.Bucket, queue.Bucket, queue.Bucket}, {queue.Plain, queue.Plain, queue.Plain}, {queue.Leaky, queue.Leaky, queue.Leaky},
		{queue.Bucket, queue.Plain, queue.Early}, {queue.Early, queue.Bucket, queue.Early}, {queue.Early, queue.Plain, queue.Early},
		{queue.Leaky, queue.Bucket, queue.Unknown}, {queue.Turns, queue.Bucket, queue.Unknown}, {queue.Foreign, queue.Plain, queue.Unknown}, {queue.Foreign, queue.Leaky, queue.Unknown},
		{queue.Leaky, queue.Plain, queue.Turns}, {queue.Turns, queue.Leased, queue.Turns}, {queue.Plain, queue.Leased, queue.Leased},
		{queue.Unknown, queue.Bucket, queue.Unknown}, {queue.Unknown, queue.Plain, queue.Unknown},
	} {
		require.Equal(t, c.want, queue.Joint(c.a, c.b), c)
		require.Equal(t, c.want, queue.Joint(c.b, c.a), c)
	}
}

var names = []string{"token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log"}

// variants describe how much is known about a limiter before it answers.
var variants = map[string]func(*limiter){
	"known":   func(*limiter) {},
	"foreign": func(l *limiter) { l.foreign = true },
	"silent":  func(l *limiter) { l.silent = true },
	"joint":   func(l *limiter) { l.joint = true },
}

// onEach runs test in a bubble for each algorithm and variant, with a limiter of rate events per
// period.
func onEach(t *testing.T, rate int, period time.Duration, test func(t *testing.T, l *limiter)) {
	t.Helper()
	for _, name := range names {
		for variant, change := range variants {
			t.Run(name+", "+variant, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := newLimiter(name, rate, period)
					change(l)
					test(t, l)
					require.Zero(t, queue.Len(), "nothing is left of a queue")
				})
			})
		}
	}
}

// far makes each direction of the round trip take d.
func (l *limiter) far(d time.Duration) { l.way = func() time.Duration { return d } }

// jitter makes the round trip random, from half of d to d in each direction.
func (l *limiter) jitter(random *rand.Rand, d time.Duration) {
	l.way = func() time.Duration {
		l.mu.Lock()
		defer l.mu.Unlock()
		return d/2 + time.Duration(random.Int64N(int64(d/2)+1))
	}
}

// check waits for all calls. Whatever has happened, no caller goes before its turn or after its
// end, and the charged events were used by a caller, refunded, or lost with their answer.
func (cs *callers) check(t *testing.T) (admitted []answer) {
	t.Helper()
	cs.wg.Wait()
	events := 0
	for i, a := range cs.answers {
		if a.err != nil {
			continue
		}
		admitted, events = append(admitted, a), events+a.n
		require.False(t, a.turn.IsZero(), "%d has no permit", i)
		require.False(t, a.ended.Before(a.turn), "%d went %v before its turn", i, a.turn.Sub(a.ended))
	}
	require.Equal(t, cs.charged-cs.lost-cs.before, events)
	return admitted
}

// inOrder checks that no turn is more than slack before the turn of an earlier caller.
func inOrder(t *testing.T, answers []answer, slack time.Duration) {
	t.Helper()
	var last time.Time
	for i, a := range answers {
		require.False(t, a.turn.Add(slack).Before(last), "%d has its turn %v too early", i, last.Sub(a.turn))
		last = latest(last, a.turn)
	}
}

func TestTurnsComeInTheOrderOfArrival(t *testing.T) {
	for _, way := range []time.Duration{0, 2 * time.Millisecond} {
		onEach(t, 10, time.Second, func(t *testing.T, l *limiter) {
			l.far(way)
			cs := newCallers(l)
			for i := range 60 {
				n := 1
				if i%7 > 4 && !l.silent { // several hold up those behind them
					n = 2
				}
				cs.join(t.Context(), n, time.Time{}, false)
			}
			admitted := cs.check(t)
			require.Len(t, admitted, 60)
			if !l.silent || way == 0 {
				inOrder(t, admitted, 0)
			}
		})
	}
}

// The first of a thousand callers find the bucket or the window empty.
func TestAThousandWaitersLoseNoRateAndAskLittleMoreThanOnceEach(t *testing.T) {
	for _, c := range []struct {
		rate   int
		period time.Duration
		way    time.Duration
	}{
		{1, 10 * time.Millisecond, 0},
		{20, time.Second, 3 * time.Millisecond},
		{1, 10 * time.Millisecond, 100 * time.Microsecond},
		{100, time.Second, 500 * time.Microsecond}, // 64 questions at once
		{20, time.Second, 0},
		{500, time.Second, 3 * time.Millisecond},
	}[:effort.Of(1, 4, 6)] {
		onEach(t, c.rate, c.period, func(t *testing.T, l *limiter) {
			l.far(c.way)
			waiters, percent := 1000, time.Duration(103)
			if testing.Short() { // the race detector is slow, and lets questions overtake each other
				waiters, percent = 300, 115
			}
			most, more := waiters*6/5+10, time.Duration(1+waiters/64)*2*c.way // at most 64 questions are in progress
			if l.foreign || l.joint && l.name != "token_bucket" {             // what is exhausted says when to ask again, and no more
				most *= 2
			}
			if l.silent { // it is asked one by one
				most, more = waiters*7/2, time.Duration(waiters)*2*c.way
			}
			for try := 1; ; try++ { // at one instant questions may run in any order, and some orders cost more
				l.reset()
				least := ideal(l.name, c.rate, c.period, waiters)
				cs := newCallers(l)
				for range waiters {
					cs.join(t.Context(), 1, time.Time{}, false)
				}
				require.Len(t, cs.check(t), waiters)
				took := time.Since(cs.began)
				t.Logf("took %.3f of the ideal, %.3f questions each", float64(took)/float64(least), float64(l.asked)/float64(waiters))
				if took <= least*percent/100+more && l.asked <= most {
					return
				}
				require.Less(t, try, 5, "too slow, or too many questions, each time")
			}
		})
	}
}

// A slow limiter is not asked by all waiting callers at the same time.
func TestNoMoreThan64QuestionsAreUnderWay(t *testing.T) {
	onEach(t, 400, time.Hour, func(t *testing.T, l *limiter) {
		l.far(500 * time.Millisecond)
		cs := newCallers(l)
		for range 100 {
			cs.join(t.Context(), 1, time.Time{}, false)
		}
		require.Len(t, cs.check(t), 100)
		require.LessOrEqual(t, l.most, 64)
		if !l.silent && l.name != "leaky_bucket" { // which are asked one by one
			require.Equal(t, 64, l.most)
		}
	})
}

// A fast limiter that is far away is asked by as many callers as its rate admits in one or two
// round trips, and callers do not wait longer.
func TestAFastFarLimiterIsUsedInFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiters, rate, period, trip = 2000, 40, 10 * time.Millisecond, 40 * time.Millisecond
		l := newLimiter("token_bucket", rate, period)
		l.far(trip / 2)
		least := ideal(l.name, rate, period, waiters)
		cs := newCallers(l)
		for range waiters {
			cs.join(t.Context(), 1, time.Time{}, false)
		}
		require.Len(t, cs.check(t), waiters)
		require.Less(t, time.Since(cs.began), least*6/5+80*time.Millisecond)
		require.Less(t, l.asked, waiters*6/5)
		require.LessOrEqual(t, l.most, int(2*trip/(period/rate)), "questions for twice what the rate has in a trip")
	})
}

// A permit is asked for in time, but not long before its time, so that a caller that leaves early
// has spent nothing.
func TestAPermitIsAskedForALittleAhead(t *testing.T) {
	for _, trip := range []time.Duration{0, 2 * time.Millisecond, 60 * time.Millisecond, 2 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter("token_bucket", 1, 10*time.Second)
			var sent []time.Time
			l.fail = func() error {
				sent = append(sent, time.Now().Add(-trip/2))
				return nil
			}
			l.far(trip / 2)
			cs := newCallers(l)
			for range 3 {
				cs.join(t.Context(), 1, time.Time{}, false)
			}
			admitted := cs.check(t)
			due := admitted[0].turn.Add(20 * time.Second)
			require.LessOrEqual(t, due.Sub(sent[len(sent)-1]), 100*time.Millisecond)
			if trip < 100*time.Millisecond {
				require.Positive(t, due.Sub(sent[len(sent)-1]), "no timer is exact")
				require.LessOrEqual(t, admitted[2].ended.Sub(due), trip/2, "no later than the answer to a question of that time")
			}
		})
	}
}

// Whichever callers come, leave, are in a hurry or get an error: none goes early, nothing is lost,
// and the patient ones are served.
func TestNobodyGoesEarlyAndNoPermitIsLost(t *testing.T) {
	for seed := range effort.Of(8, 20, 60) {
		onEach(t, 1+seed%7, 100*time.Millisecond, func(t *testing.T, l *limiter) {
			random := rand.New(rand.NewPCG(uint64(seed), 1))
			l.jitter(random, time.Duration(1+random.IntN(8000))*time.Microsecond)
			some := func(percent int, err error) func() error {
				return func() error {
					l.mu.Lock()
					defer l.mu.Unlock()
					if random.IntN(100) < percent {
						return err
					}
					return nil
				}
			}
			if seed%2 == 1 {
				l.fail, l.lose = some(5, errAway), some(3, errLost)
			}
			cs := newCallers(l)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			hurried := map[int]bool{}
			for i := range 150 {
				l.mu.Lock()
				n, what, pause := 1, random.IntN(10), random.ExpFloat64()
				if random.IntN(4) == 0 {
					n = 1 + random.IntN(l.limit+1)
				}
				some := time.Duration(random.Int64N(int64(2 * time.Second)))
				l.mu.Unlock()
				hurried[i] = true
				switch {
				case what < 2:
					cs.join(ctx, n, time.Now().Add(some), what == 0)
				case what == 2:
					leaving, leave := context.WithCancel(ctx)
					defer leave()
					time.AfterFunc(some, leave)
					cs.join(leaving, n, time.Time{}, false)
				default:
					hurried[i] = false
					cs.join(ctx, n, time.Time{}, false)
				}
				if i%50 == 49 {
					l.reset()
				}
				time.Sleep(time.Duration(pause * float64(100*time.Millisecond) / float64(l.limit)))
			}
			cs.check(t)
			for i, a := range cs.answers {
				switch {
				case a.err == nil:
					require.True(t, a.end.IsZero() || a.ended.Sub(a.end) <= 2*maxWay, "%d is late", i)
				case errors.Is(a.err, queue.ErrNever):
					require.Greater(t, a.n, l.limit, i)
				case errors.Is(a.err, queue.ErrTooLate):
					require.False(t, a.end.IsZero(), i)
					require.LessOrEqual(t, a.ended.Sub(a.end), 2*maxWay, i)
				default:
					require.True(t, errors.Is(a.err, errLost) || hurried[i] &&
						(errors.Is(a.err, errAway) || errors.Is(a.err, context.Canceled) || errors.Is(a.err, context.DeadlineExceeded)), a.err)
				}
			}
		})
	}
}

const maxWay = 8 * time.Millisecond

// The places in the queue of a bucket are known, and so is the end of a window.
func TestLateCallersAreRefusedImmediately(t *testing.T) {
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLimiter(name, 1, 10*time.Second)
				l.decide(1, 0)
				l.far(time.Millisecond)
				cs := newCallers(l)
				ctx, cancel := context.WithCancel(t.Context())
				for range 3 {
					cs.join(ctx, 1, time.Time{}, false)
				}
				time.Sleep(100 * time.Millisecond)
				asked, began := l.questions(), time.Now()
				a := l.wait(t.Context(), 1, began.Add(time.Second), false)
				require.ErrorIs(t, a.err, queue.ErrTooLate)
				require.Greater(t, a.RetryAfter, time.Second)
				if name == "token_bucket" { // the third has its turn in 30 s
					a = l.wait(t.Context(), 1, began.Add(35*time.Second), true)
					require.ErrorIs(t, a.err, queue.ErrTooLate)
				}
				require.Equal(t, asked, l.questions(), "without a question")
				require.Zero(t, time.Since(began))
				cancel()
				cs.check(t)
				require.Zero(t, queue.Len())
			})
		})
	}
}

// The callers wait in the queue before it is known.
func TestWaitersAreRefusedAsSoonAsTheyAreKnownToBeLate(t *testing.T) {
	onEach(t, 1, time.Hour, func(t *testing.T, l *limiter) {
		l.decide(1, 0)
		l.far(time.Second)
		cs := newCallers(l)
		ctx, cancel := context.WithCancel(t.Context())
		cs.join(ctx, 1, time.Time{}, false)
		cs.join(t.Context(), 1, time.Now().Add(10*time.Minute), false)
		cs.join(t.Context(), 2, time.Time{}, false)
		time.Sleep(10 * time.Second)
		cancel()
		cs.check(t)
		require.ErrorIs(t, cs.answers[1].err, queue.ErrTooLate)
		require.LessOrEqual(t, cs.answers[1].ended.Sub(cs.began), 4*time.Second)
		require.ErrorIs(t, cs.answers[2].err, queue.ErrNever)
		require.LessOrEqual(t, cs.answers[2].ended.Sub(cs.began), 4*time.Second)
	})
}

// No caller has a deadline, so only the limit shows it, even to a caller that already waits when
// the limit is lowered.
func TestCallersForMoreThanTheLimitAreRefusedAsSoonAsItIsKnown(t *testing.T) {
	for _, way := range []time.Duration{time.Millisecond, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter("token_bucket", 3, 3*time.Hour)
			l.decide(3, 0)
			l.far(way)
			cs := newCallers(l)
			for _, n := range []int{1, 2, 4, 3, 1} { // the third finds nothing known
				cs.join(t.Context(), n, time.Time{}, false)
			}
			time.Sleep(10 * time.Second)
			cs.mu.Lock()
			require.ErrorIs(t, cs.answers[2].err, queue.ErrNever)
			cs.mu.Unlock()
			l.mu.Lock()
			l.limit = 2
			l.mu.Unlock()
			cs.check(t)
			require.ErrorIs(t, cs.answers[3].err, queue.ErrNever)
			require.LessOrEqual(t, cs.answers[3].ended.Sub(cs.began), time.Hour+time.Minute, "by the next answer")
			require.NoError(t, cs.answers[4].err)
		})
	}
}

// The place in the queue shows it as well, before and after an outage.
func TestWaitersTooFarBackAreRefusedAsSoonAsItIsKnown(t *testing.T) {
	for _, outage := range []time.Duration{0, 2 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter("token_bucket", 1, time.Hour)
			l.decide(1, 0)
			back := time.Now().Add(outage)
			l.fail = func() error {
				if time.Now().Before(back) {
					return errAway
				}
				return nil
			}
			cs := newCallers(l)
			ctx, cancel := context.WithCancel(t.Context())
			cs.join(ctx, 1, time.Time{}, false)
			cs.join(ctx, 1, time.Time{}, false)
			cs.join(ctx, 1, cs.began.Add(150*time.Minute), false) // its turn is in 3 h
			cs.join(ctx, 1, cs.began.Add(181*time.Minute), false) // and then it is this one's
			time.Sleep(20 * time.Second)
			cancel()
			cs.check(t)
			require.ErrorIs(t, cs.answers[2].err, queue.ErrTooLate)
			require.LessOrEqual(t, cs.answers[2].ended.Sub(back), time.Second)
			require.ErrorIs(t, cs.answers[3].err, context.Canceled, "it waits until all are cancelled")
		})
	}
}

// The callers that leave have waited in the queue, asked, or slept until their turn.
func TestThoseWhoLeaveLeaveNoGap(t *testing.T) {
	for _, name := range []string{"token_bucket", "leaky_bucket"} {
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(name, 1, 10*time.Millisecond)
			l.far(500 * time.Microsecond)
			cs := newCallers(l)
			for i := range 120 {
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				if i%2 == 1 && i <= 80 {
					time.AfterFunc(time.Duration(i)*7*time.Millisecond, leave)
				}
				cs.join(ctx, 1, time.Time{}, false)
			}
			admitted := cs.check(t)
			took := admitted[len(admitted)-1].turn.Sub(cs.began)
			require.LessOrEqual(t, took, time.Duration(len(admitted)-1)*10*time.Millisecond*110/100, name)
			require.Zero(t, queue.Len())
		})
	}
}

// The second caller has the last turn, and refunds it while the first still waits for its own.
func TestAfterARefundTheTurnIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter("leaky_bucket", 4, 4*time.Second)
		l.decide(1, 0)
		cs := newCallers(l)
		cs.join(t.Context(), 1, time.Time{}, false)
		ctx, cancel := context.WithCancel(t.Context())
		cs.join(ctx, 1, time.Time{}, false)
		cancel()
		synctest.Wait()
		cs.join(t.Context(), 1, cs.began.Add(2500*time.Millisecond), false)
		require.Len(t, cs.check(t), 2)
		require.NoError(t, cs.answers[2].err)
		require.Equal(t, 2*time.Second, cs.answers[2].ended.Sub(cs.began))
	})
}

// The first caller waits for the end of an outage. The last one has no time left when the second
// one asks.
func TestAfterAnOutageNobodyFailsForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter("fixed_window", 2, time.Hour)
		l.silent = true // it is asked one by one
		l.far(5 * time.Second)
		back := time.Now().Add(6 * time.Second)
		l.fail = func() error {
			if time.Now().Before(back) {
				return errAway
			}
			return nil
		}
		cs := newCallers(l)
		for range 2 {
			cs.join(t.Context(), 1, time.Time{}, false)
		}
		cs.join(t.Context(), 1, cs.began.Add(25*time.Second), true)
		require.Len(t, cs.check(t), 2)
		require.ErrorIs(t, cs.answers[2].err, queue.ErrTooLate)
		require.Equal(t, 25*time.Second, cs.answers[2].ended.Sub(cs.began))
	})
}

func TestAStoreThatIsAwayIsAskedEverMoreRarely(t *testing.T) {
	onEach(t, 10, time.Second, func(t *testing.T, l *limiter) {
		back := time.Now().Add(time.Minute)
		l.fail = func() error {
			if time.Now().Before(back) {
				return errAway
			}
			return nil
		}
		cs := newCallers(l)
		for range 20 {
			cs.join(t.Context(), 1, time.Time{}, false)
		}
		hasty := l.wait(t.Context(), 1, time.Now().Add(10*time.Second), true)
		require.ErrorIs(t, hasty.err, errAway)
		require.LessOrEqual(t, hasty.ended.Sub(hasty.began), 10*time.Second)
		time.Sleep(time.Until(back))
		require.LessOrEqual(t, l.questions(), 80)
		admitted := cs.check(t)
		require.Len(t, admitted, 20)
		inOrder(t, admitted, 0)
		require.LessOrEqual(t, admitted[0].turn.Sub(back), time.Second)
	})
}
