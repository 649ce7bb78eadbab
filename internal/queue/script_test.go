package queue_test

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/queue"
)

// reply is a limiter's answer to a question, after a round trip.
type reply struct {
	trip time.Duration
	queue.Answer
	err    error
	panics bool
}

// script is a limiter with answers set by a test. It immediately admits all further questions.
type script struct {
	kind    queue.Kind
	replies []reply // by question, as they were sent

	began   time.Time
	mu      sync.Mutex
	callers int
	asked   []question // of an instant, in the order of the callers
	refunds int
	wg      sync.WaitGroup
}

// question is a question to a script.
type question struct {
	at     time.Duration // since the script began
	caller int
	n      int
	within time.Duration
}

// caller is one call that waits, and how the wait ended.
type caller struct {
	*script
	number, n int

	queue.Answer
	err   error
	ended time.Duration // since the script began; 0 if it still waits
	panic any
}

// play runs test in a bubble, with a limiter of the given kind and answers.
func play(t *testing.T, kind queue.Kind, replies []reply, test func(t *testing.T, s *script)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &script{kind: kind, replies: replies, began: time.Now()}
		defer func() {
			s.wg.Wait()
			require.Zero(t, queue.Len(), "nothing is left of a queue")
		}()
		test(t, s)
	})
}

func (c *caller) Ask(_ context.Context, d time.Duration) (queue.Answer, error) {
	asked := question{time.Since(c.began), c.number, c.n, d}
	order := func(a, b question) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.caller, b.caller)) }
	c.mu.Lock()
	i, _ := slices.BinarySearchFunc(c.asked, asked, order)
	c.asked = slices.Insert(c.asked, i, asked)
	c.mu.Unlock()
	if i < len(c.replies) && c.replies[i].trip > 0 { // the scheduler runs those who ask now in any order
		time.Sleep(time.Nanosecond)
		c.mu.Lock()
		i, _ = slices.BinarySearchFunc(c.asked, asked, order)
		c.mu.Unlock()
	}
	if i >= len(c.replies) {
		return queue.Answer{Allowed: true, Limit: 1000, Remaining: 999, ResetAfter: time.Millisecond}, nil
	}
	r := c.replies[i]
	time.Sleep(max(0, r.trip-1))
	if r.panics {
		panic("the limiter is broken")
	}
	return r.Answer, r.err
}

func (c *caller) Refund(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refunds++
	return nil
}

func (c *caller) MayHandOn() bool { return true }
func (c *caller) Permit() any     { return c.n }
func (c *caller) Take(any)        {}

// join adds a call of n events. When join returns, the call waits in the queue, asks, or has ended.
func (s *script) join(ctx context.Context, n int) *caller {
	return s.joinWith(ctx, n, queue.Waiter{Limiter: s})
}

// until is join with a deadline, after which a turn is useless.
func (s *script) until(t *testing.T, n int, end time.Duration) *caller {
	ctx, cancel := context.WithDeadline(t.Context(), s.began.Add(end+1))
	t.Cleanup(cancel)
	return s.join(ctx, n)
}

// joinWith is join with the options of the wait in w.
func (s *script) joinWith(ctx context.Context, n int, w queue.Waiter) *caller {
	s.callers++
	c := &caller{script: s, number: s.callers, n: n}
	w.Key, w.N, w.Kind, w.Asker = "key", n, s.kind, c
	s.wg.Go(func() {
		var err error
		defer func() {
			p := recover()
			s.mu.Lock()
			defer s.mu.Unlock()
			c.Answer, c.err, c.ended, c.panic = w.Answer, err, max(1, time.Since(s.began)), p
		}()
		err = w.Wait(ctx)
	})
	synctest.Wait()
	return c
}

// at sleeps until d after the beginning of the script.
func (s *script) at(d time.Duration) {
	time.Sleep(d - time.Since(s.began))
	synctest.Wait()
}

// questions returns the questions so far.
func (s *script) questions() []question {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

// untilAsked sleeps until the question with that number has been sent.
func (s *script) untilAsked(number int) {
	for len(s.questions()) < number {
		s.at(time.Since(s.began) + ms)
	}
}

// sent checks the number of questions, and returns when they were sent.
func (s *script) sent(t *testing.T, want int) (times []time.Duration) {
	t.Helper()
	for _, q := range s.questions() {
		times = append(times, q.at)
	}
	require.Len(t, times, want)
	return times
}

// refusedUnasked checks that the limiter was not asked on behalf of c, whose turn was known to come
// too late.
func (c *caller) refusedUnasked(t *testing.T) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	require.ErrorIs(t, c.err, queue.ErrTooLate)
	require.False(t, c.Asked)
}

// admitted returns an admission by a limit, after which left events remain.
func admitted(limit, left int, reset time.Duration) queue.Answer {
	return queue.Answer{Allowed: true, Limit: limit, Remaining: left, ResetAfter: reset}
}

// ahead is admitted with a turn after delay.
func ahead(limit, left int, reset, delay time.Duration) queue.Answer {
	d := admitted(limit, left, reset)
	d.Delay = delay
	return d
}

// denied returns a denial by a limit.
func denied(limit, left int, reset, retry time.Duration) queue.Answer {
	return queue.Answer{Limit: limit, Remaining: left, ResetAfter: reset, RetryAfter: retry}
}

// of adds the answer of one of several limits to d, and returns the result.
func of(d queue.Answer, kind queue.Kind, p queue.Answer) queue.Answer {
	d.Part(kind, 1, p)
	return d
}

const ms = time.Millisecond

// If calls are counted, a limit of events has room for fewer calls. It decides if it has room for
// the fewest. Limit and Remaining always come from the same limit.
func TestALimitOfEventsIsToldInCalls(t *testing.T) {
	for _, c := range []struct {
		n         int // events of a call
		told      [2]int
		part      [2]int
		want      [2]int
		whenEqual string
	}{
		{1, [2]int{10, 3}, [2]int{5, 1}, [2]int{10, 3}, "events are counted: what the limiter says holds"},
		{2, [2]int{100, 3}, [2]int{10, 4}, [2]int{5, 2}, ""},
		{2, [2]int{100, 3}, [2]int{10, 8}, [2]int{100, 3}, ""},
		{2, [2]int{100, 3}, [2]int{6, 6}, [2]int{100, 3}, "the first of equals"},
		{2, [2]int{100, 3}, [2]int{0, 0}, [2]int{100, 3}, "no limit"},
		{10, [2]int{100, 3}, [2]int{5, 5}, [2]int{1, 0}, "it is a limit, though none of a call"},
	} {
		d := queue.Answer{Allowed: true, Limit: c.told[0], Remaining: c.told[1]}
		d.Part(queue.Plain, c.n, queue.Answer{Limit: c.part[0], Remaining: c.part[1]})
		require.Equal(t, c.want, [2]int{d.Limit, d.Remaining}, c)
	}
}

// After an error, earlier knowledge may be wrong, because the questions in progress may be lost.
// The callers in the queue therefore wait for an answer.
func TestAfterAnErrorNoOtherIsAskedUntilAnAnswer(t *testing.T) {
	slow := reply{trip: 2 * time.Second, Answer: admitted(20, 3, time.Second)}
	play(t, queue.Plain, []reply{
		{trip: time.Second, Answer: admitted(20, 10, time.Second)}, {trip: 500 * ms, err: errLost}, slow, slow, slow, slow,
	}, func(t *testing.T, s *script) {
		for range 6 {
			s.join(t.Context(), 1)
		}
		s.at(1600 * ms)
		s.sent(t, 6)
		s.join(t.Context(), 1)
		s.wg.Wait()
		require.Equal(t, 3*time.Second, s.sent(t, 7)[6])
	})
	away := reply{trip: 10 * ms, err: errAway}
	play(t, queue.Bucket, []reply{ // fast and far: several were asked for ahead
		{trip: 100 * ms, Answer: admitted(10, 0, 100*ms)}, away, away, away, {trip: 50 * ms, Answer: admitted(10, 0, 100*ms)},
	}, func(t *testing.T, s *script) {
		for range 4 {
			s.join(t.Context(), 1)
		}
		s.wg.Wait()
		sent := s.sent(t, 7)
		require.Equal(t, sent[1], sent[3])
		require.GreaterOrEqual(t, sent[5]-sent[4], 50*ms, "one asks whether the store is back")
	})
}

// A failed question has charged nothing, so no caller waits because of it.
func TestALostQuestionPutsNobodyBack(t *testing.T) {
	play(t, queue.Bucket, []reply{
		{trip: 800 * ms, Answer: admitted(10, 2, 8*time.Second)},
		{trip: 800 * ms, Answer: ahead(10, 0, 10*time.Second, 5*ms)}, {trip: 500 * ms, err: errLost},
	}, func(t *testing.T, s *script) {
		for range 4 {
			s.join(t.Context(), 1)
		}
		s.wg.Wait()
		require.InDelta(t, 2200*ms, s.sent(t, 4)[3], float64(200*ms), "a second after the decision on the last")
	})
	play(t, queue.Bucket, []reply{
		{trip: 10 * ms, Answer: ahead(10, 0, 10*time.Second, ms)}, {panics: true},
	}, func(t *testing.T, s *script) {
		s.join(t.Context(), 1)
		broken := s.join(t.Context(), 1)
		s.join(t.Context(), 1)
		s.wg.Wait()
		require.NotNil(t, broken.panic)
		sent := s.sent(t, 3)
		require.Equal(t, sent[1], sent[2], "a limiter that panics has decided nothing, either")
	})
}

// Events that are never admitted are not charged, and the answer refuses all callers that want as
// many.
func TestCallsThatAreNeverAdmittedHoldUpNobody(t *testing.T) {
	play(t, queue.Bucket, []reply{
		{trip: 10 * ms, Answer: ahead(10, 0, 10*time.Second, ms)}, {Answer: denied(3, 0, 3*time.Second, queue.Never)},
	}, func(t *testing.T, s *script) {
		s.join(t.Context(), 1)
		five, four, one := s.join(t.Context(), 5), s.join(t.Context(), 4), s.join(t.Context(), 1)
		s.wg.Wait()
		require.ErrorIs(t, five.err, queue.ErrNever)
		require.ErrorIs(t, four.err, queue.ErrNever)
		require.False(t, four.Asked)
		require.NoError(t, one.err)
		sent := s.sent(t, 3)
		require.Equal(t, sent[1], sent[2])
	})
}

// Each outage begins with a pause, even for a question that was sent before the last outage.
func TestAnOldQuestionThatFailsIsNotAskedAgainAtOnce(t *testing.T) {
	play(t, queue.Plain, []reply{
		{trip: time.Second, Answer: admitted(20, 10, time.Second)},
		{trip: 10 * time.Second, err: errAway}, {trip: time.Second, err: errAway}, {trip: 2 * time.Second, Answer: admitted(20, 10, time.Second)},
	}, func(t *testing.T, s *script) {
		for range 4 {
			s.join(t.Context(), 1)
		}
		s.wg.Wait()
		sent := s.sent(t, 6)
		require.Greater(t, sent[4], 11*time.Second)
		require.Less(t, sent[4], 12*time.Second)
	})
}

// The next question of the waiting callers shows whether the store is available again, for all of
// them.
func TestNewcomersDoNotEndThePauseOfAnOutage(t *testing.T) {
	away := make([]reply, 11) // the last pauses are of a second
	for i := range away {
		away[i].err = errAway
	}
	play(t, queue.Bucket, away, func(t *testing.T, s *script) {
		s.join(t.Context(), 1)
		for asked := 1; asked <= len(away); asked++ {
			s.untilAsked(asked)
			s.join(t.Context(), 1)
			s.sent(t, asked)
		}
	})
}

// A denial for an hour may be outdated, for example after a Reset. The first caller therefore asks
// again when another one arrives, but at most once per second.
func TestNewcomersLetTheFirstWaiterAskAgain(t *testing.T) {
	no := reply{Answer: denied(1, 0, time.Hour, time.Hour)}
	play(t, queue.Plain, []reply{no, no}, func(t *testing.T, s *script) {
		first := s.join(t.Context(), 1)
		for _, at := range []time.Duration{500 * ms, 2 * time.Second, 2500 * ms, 3500 * ms} {
			s.at(at)
			s.join(t.Context(), 1)
		}
		s.wg.Wait()
		require.Equal(t, []time.Duration{0, 2 * time.Second, 3500 * ms}, s.sent(t, 7)[:3])
		require.Equal(t, 3500*ms, first.ended)
	})
}

// The time when a limiter is full again may come from another one of its limits. It is a time to
// ask, not to wait for.
func TestTheResetOfAnUnknownLimitIsNotTheNextTurn(t *testing.T) {
	for _, kind := range []queue.Kind{queue.Unknown, queue.Turns, queue.Foreign} {
		play(t, kind, []reply{{trip: ms, Answer: admitted(1, 0, 150*ms)}}, func(t *testing.T, s *script) {
			s.join(t.Context(), 1)
			s.join(t.Context(), 1)
			s.wg.Wait()
			require.Equal(t, ms, s.sent(t, 2)[1], kind)
		})
	}
}

// The question is sent when the events fit, so that it is not denied and no time is lost.
func TestTheNextIsAskedForWhenItFits(t *testing.T) {
	slow, fast := denied(10, 1, 900*ms, 0), denied(10, 0, 100*ms, 0)                                    // one event each 100 ms, and each 10 ms
	hundred, ten, two := admitted(10, 0, time.Second), admitted(10, 0, 100*ms), admitted(10, 2, 800*ms) // the same, and with room for two
	for name, c := range map[string]struct {
		kind     queue.Kind
		n        int // events of the second
		first    reply
		from, to time.Duration
	}{
		"three of five are there": {queue.Bucket, 5, reply{trip: 2 * ms, Answer: admitted(10, 3, 350*ms)}, 80 * ms, 101 * ms},
		"one limit is exhausted":  {queue.Early, 1, reply{trip: 2 * ms, Answer: of(of(admitted(10, 0, 900*ms), queue.Plain, slow), queue.Bucket, fast)}, 2 * ms, 20 * ms},
		"the slower of two":       {queue.Early, 1, reply{trip: 2 * ms, Answer: of(of(admitted(10, 0, time.Hour), queue.Early, hundred), queue.Early, ten)}, 80 * ms, 101 * ms},
		"a faster one before it":  {queue.Early, 1, reply{trip: 2 * ms, Answer: of(of(admitted(10, 0, time.Hour), queue.Early, ten), queue.Early, hundred)}, 80 * ms, 101 * ms},
		"room, and no limit":      {queue.Early, 3, reply{trip: 2 * ms, Answer: of(of(admitted(10, 2, time.Hour), queue.Early, two), queue.Early, queue.Answer{})}, 80 * ms, 101 * ms},
		"no limit, and room":      {queue.Early, 3, reply{trip: 2 * ms, Answer: of(of(admitted(10, 2, time.Hour), queue.Early, queue.Answer{}), queue.Early, two)}, 80 * ms, 101 * ms},
		"few in the queue":        {queue.Bucket, 1, reply{trip: 2 * ms, Answer: ahead(10, 0, 400*ms, ms)}, 20 * ms, 42 * ms},
		"a denial from far away":  {queue.Bucket, 1, reply{trip: 60 * ms, Answer: denied(1, 0, time.Second, time.Second)}, 900 * ms, 1012 * ms},
		"a guess":                 {queue.Plain, 1, reply{trip: 2 * ms, Answer: admitted(10, 0, 400*ms)}, 30 * ms, 42 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, c.kind, []reply{c.first}, func(t *testing.T, s *script) {
				s.join(t.Context(), 1)
				if c.first.Allowed {
					s.join(t.Context(), c.n)
				}
				s.wg.Wait()
				at := s.sent(t, 2)[1]
				require.GreaterOrEqual(t, at, c.from)
				require.LessOrEqual(t, at, c.to)
			})
		})
	}
}

// A guess that is later than the caller's end may be wrong, and the caller might have had its turn.
func TestNobodyIsRefusedByAGuess(t *testing.T) {
	play(t, queue.Plain, []reply{{trip: ms, Answer: admitted(10, 0, time.Second)}}, func(t *testing.T, s *script) {
		s.join(t.Context(), 1)
		hurried := s.until(t, 1, 50*ms)
		s.wg.Wait()
		require.NoError(t, hurried.err)
		require.Equal(t, ms, s.sent(t, 2)[1])
	})
	window, bucket := denied(2, 0, 20*time.Second, 0), ahead(10, 0, time.Second, 5*ms)
	play(t, queue.Early, []reply{ // the bucket gives events ahead of time, but it is the window that is exhausted for longer
		{trip: 2 * ms, Answer: of(of(ahead(2, 0, 20*time.Second, 5*ms), queue.Plain, window), queue.Bucket, bucket)},
	}, func(t *testing.T, s *script) {
		s.join(t.Context(), 1)
		s.join(t.Context(), 1)
		hurried := s.until(t, 1, 5*time.Second)
		s.wg.Wait()
		require.NoError(t, hurried.err)
	})
	first, late := admitted(100, 6, 94*time.Second), denied(100, 5, 95*time.Second, 500*ms)
	play(t, queue.Turns, []reply{ // a turn says nothing of those behind it
		{trip: ms, Answer: of(first, queue.Plain, first)}, {Answer: of(late, queue.Plain, late)},
	}, func(t *testing.T, s *script) {
		s.join(t.Context(), 1)
		s.until(t, 1, 3*time.Second)
		var behind []*caller
		for range 30 {
			behind = append(behind, s.until(t, 1, 10*time.Second))
		}
		s.wg.Wait()
		for i, c := range behind {
			require.NoError(t, c.err, i)
		}
	})
}

// Another limit may have answered instead of a leaky bucket. Its answer shows only when to ask.
func TestADenialOfAnotherLimitIsNoMeasureOfTurns(t *testing.T) {
	no := denied(10, 0, time.Hour, time.Hour)
	no.Elsewhere = true
	play(t, queue.Leaky, []reply{{trip: ms, Answer: no}}, func(t *testing.T, s *script) {
		ctx, leave := context.WithCancel(t.Context())
		s.join(ctx, 1)
		s.join(t.Context(), 2)
		s.at(2 * ms)
		leave()
		s.wg.Wait()
		require.Equal(t, time.Hour+ms, s.sent(t, 2)[1])
	})
}

// If an answer shows the turns of other callers, they learn of them without a question.
func TestAnAnswerTellsWhoComesTooLate(t *testing.T) {
	bucket := ahead(10, 0, 100*time.Second, 5*ms)
	for name, c := range map[string]struct {
		kind   queue.Kind
		answer queue.Answer
		behind int // the callers in between
	}{
		"a leaky bucket of one": {queue.Leaky, admitted(1, 0, 10*time.Second), 0},
		"after this turn":       {queue.Turns, ahead(4, 0, time.Hour, 6*time.Second), 0},
		"ahead of time":         {queue.Early, of(bucket, queue.Bucket, bucket), 1},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, c.kind, []reply{{trip: 10 * ms, Answer: c.answer}}, func(t *testing.T, s *script) {
				for range 1 + c.behind {
					s.join(t.Context(), 1)
				}
				hurried := s.until(t, 1, 5*time.Second)
				s.at(10 * ms)
				hurried.refusedUnasked(t)
				s.sent(t, 1+c.behind)
			})
		})
	}
}

// A waiting caller is refused as soon as its place is known to be too late, even by an exact answer
// after a guess, after an outage, and after a time in which only the first place was known.
func TestWaitersAreRefusedWhenTheirPlaceIsKnownToBeTooLate(t *testing.T) {
	const minute = time.Minute
	bucket := admitted(1, 0, time.Hour)
	early := ahead(1, 0, time.Hour, 5*ms)
	no := denied(1, 0, time.Hour, time.Hour)
	play(t, queue.Bucket, []reply{{trip: 10 * ms, Answer: bucket}, {Answer: no}}, func(t *testing.T, s *script) {
		s.join(t.Context(), 1)
		s.join(t.Context(), 1)
		late := s.until(t, 1, 90*minute)
		s.at(minute)
		late.refusedUnasked(t)
		s.sent(t, 2)
	})
	play(t, queue.Bucket, []reply{{Answer: no}, {err: errAway}, {Answer: early}}, func(t *testing.T, s *script) {
		s.join(t.Context(), 1)
		s.at(time.Hour)
		s.untilAsked(2) // and the store is away
		s.join(t.Context(), 1)
		late := s.until(t, 1, 150*minute)
		s.at(61 * minute)
		late.refusedUnasked(t)
		s.sent(t, 3)
	})
	play(t, queue.Early, []reply{
		{trip: time.Second, Answer: no}, {Answer: of(early, queue.Bucket, early)}, {trip: 10 * minute, Answer: admitted(1, 0, time.Hour)},
	}, func(t *testing.T, s *script) {
		s.join(t.Context(), 1)
		s.until(t, 1, 30*minute) // refused by the denial
		s.join(t.Context(), 1)
		late := s.until(t, 1, 110*minute)
		s.at(61 * minute)
		late.refusedUnasked(t)
	})
}

// There is room for all waiting callers, so the answer to one does not delay the next.
func TestThoseForWhomThereIsRoomAskTogether(t *testing.T) {
	for name, c := range map[string]struct {
		kind   queue.Kind
		answer queue.Answer
	}{
		"a window":      {queue.Plain, admitted(3, 2, time.Second)},
		"turns unknown": {queue.Turns, admitted(0, math.MaxInt32, 0)}, // no limit counts it
		"no turns":      {queue.Foreign, admitted(3, 2, time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			slow := reply{trip: time.Second, Answer: c.answer}
			play(t, c.kind, []reply{slow, slow, slow}, func(t *testing.T, s *script) {
				for range 3 {
					s.join(t.Context(), 1)
				}
				s.wg.Wait()
				require.Equal(t, []time.Duration{0, time.Second, time.Second}, s.sent(t, 3))
			})
		})
	}
	slow := reply{trip: 3 * time.Second, Answer: admitted(20, 9, time.Second)}
	play(t, queue.Plain, []reply{slow, slow, slow}, func(t *testing.T, s *script) {
		s.join(t.Context(), 1)
		s.join(t.Context(), 1)
		s.at(4500 * ms) // the last answer is old, but a question is in progress
		s.join(t.Context(), 1)
		require.Equal(t, 4500*ms, s.sent(t, 3)[2])
	})
}

// While one limit is exhausted, as many ask a far limiter as its rate admits, if it may admit events before their time. A
// denial before that changes nothing.
func TestAFarLimiterIsAskedForMoreOnlyIfItAdmitsEventsEarly(t *testing.T) {
	far := func(a queue.Answer, kind queue.Kind) reply { return reply{trip: 500 * ms, Answer: of(a, kind, a)} }
	for kind, together := range map[queue.Kind]bool{queue.Early: true, queue.Bucket: true, queue.Plain: false, queue.Leased: false} {
		for _, before := range [][]reply{nil, {far(denied(10, 0, time.Second, 10*ms), kind)}} {
			yes := far(admitted(10, 0, time.Second), kind)
			play(t, queue.Early, append(before, yes, yes, yes, yes, yes, yes), func(t *testing.T, s *script) {
				for range 6 {
					s.join(t.Context(), 1)
				}
				s.wg.Wait()
				sent := s.sent(t, 6+len(before))[len(before):]
				require.Equal(t, together, sent[1] == sent[2], "kind %d, denied %d: %v", kind, len(before), sent)
				require.NotEqual(t, sent[4], sent[5], "no faster than the rate")
			})
		}
	}
}

// What was learned of a larger call, which counts as one as well, does not refuse a smaller one.
func TestALargerCallRefusesNoSmallerOne(t *testing.T) {
	large := ahead(5, 0, 4*time.Second, 2*time.Second) // one in 400 ms
	for name, c := range map[string]struct {
		second reply
		end    time.Duration // of the second call, which is large
		leave  bool
	}{
		"admitted":                   {second: reply{Answer: large}, end: time.Hour},
		"denied, too late":           {second: reply{Answer: denied(5, 0, 10*time.Second, 10*time.Second)}, end: 5 * time.Second},
		"denied, and it then leaves": {second: reply{Answer: denied(5, 0, 10*time.Second, 10*time.Second)}, end: time.Hour, leave: true},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, queue.Bucket, []reply{{Answer: large}, c.second}, func(t *testing.T, s *script) {
				join := func(size int, end time.Duration) (*caller, context.CancelFunc) {
					ctx, cancel := context.WithDeadline(t.Context(), s.began.Add(end))
					t.Cleanup(cancel)
					return s.joinWith(ctx, 1, queue.Waiter{Limiter: s, Size: size}), cancel
				}
				join(1, time.Hour) // has its turn after 2 s
				_, leave := join(3, c.end)
				s.at(100 * ms)
				if c.leave {
					leave()
					synctest.Wait()
				}
				small, _ := join(1, time.Second)
				require.NoError(t, small.err)
				require.True(t, small.Asked)
			})
		})
	}
}

// A denial by a bucket counts from the time that the question allowed. That is added for those who come later, and for the
// caller, who is told when its events could be admitted.
func TestADenialCountsFromTheTimeThatWasAllowed(t *testing.T) {
	no := reply{Answer: denied(5, 0, time.Second, 100*ms)}
	play(t, queue.Bucket, []reply{no}, func(t *testing.T, s *script) {
		late := s.until(t, 1, 50*ms)
		require.ErrorIs(t, late.err, queue.ErrTooLate)
		require.Equal(t, 100*ms+s.questions()[0].within, late.RetryAfter)
	})
	play(t, queue.Bucket, []reply{no}, func(t *testing.T, s *script) {
		s.join(t.Context(), 1)
		allowed := s.questions()[0].within
		require.Positive(t, allowed)
		s.until(t, 1, 100*ms+allowed-1).refusedUnasked(t)
		s.sent(t, 1)
	})
}

// No turn of a leaky bucket comes before it is empty, so who has less time is refused.
func TestWhileALeakyBucketIsNotEmptyNobodyIsInTime(t *testing.T) {
	play(t, queue.Leaky, []reply{{Answer: denied(5, 0, time.Second, 100*ms)}}, func(t *testing.T, s *script) {
		s.join(t.Context(), 1)
		s.until(t, 1, 900*ms).refusedUnasked(t)
		s.sent(t, 1)
	})
}

// A caller for more events than the last answer allowed asks at once, and waits if the limit has risen meanwhile.
func TestWhenTheLimitHasRisenACallerForMoreWaits(t *testing.T) {
	play(t, queue.Early, []reply{
		{Answer: ahead(2, 1, time.Second, 2*time.Second)}, {Answer: denied(10, 0, time.Second, 100*ms)},
	}, func(t *testing.T, s *script) {
		s.join(t.Context(), 1)
		c := s.until(t, 5, 10*time.Second)
		s.wg.Wait()
		require.NoError(t, c.err)
		require.Equal(t, 100*ms, c.ended)
	})
}

// drowsy is the context of a caller that does not continue before the channel is closed.
type drowsy struct {
	context.Context
	until chan struct{}
}

func (d drowsy) Done() <-chan struct{} {
	<-d.until
	return d.Context.Done()
}

// A caller that arrives when the first in the queue is about to go needs none of the places for
// sleeping callers, if there is room for both.
func TestCallersThatNeedNotWaitNeedNoPlace(t *testing.T) {
	play(t, queue.Plain, []reply{{trip: ms, Answer: admitted(3, 2, time.Second)}}, func(t *testing.T, s *script) {
		until := make(chan struct{})
		defer close(until)
		s.join(t.Context(), 1)
		s.join(drowsy{t.Context(), until}, 1)
		s.at(2 * ms)
		require.NoError(t, s.joinWith(t.Context(), 1, queue.Waiter{Limiter: s, Places: new(queue.Places)}).err)
		require.Equal(t, 2*ms, s.sent(t, 2)[1])
	})
}

// A denial that was overtaken by an admission delays nobody.
func TestAnAdmissionEndsTheDenialBeforeIt(t *testing.T) {
	play(t, queue.Plain, []reply{
		{trip: time.Second, Answer: admitted(10, 2, 10*time.Second)},
		{trip: 500 * ms, Answer: denied(10, 0, time.Hour, time.Hour)}, {trip: time.Second, Answer: admitted(10, 5, 10*time.Second)},
	}, func(t *testing.T, s *script) {
		for range 4 {
			s.join(t.Context(), 1)
		}
		s.wg.Wait()
		require.Less(t, time.Since(s.began), time.Minute)
	})
}

// Two callers ask at the same time. The answer to the second comes first, and shows the current
// state.
func TestTheNewestQuestionSaysWhatThereIs(t *testing.T) {
	for name, c := range map[string]struct {
		first, second, third reply
		from, to             time.Duration // when the fourth is asked
	}{
		"it was denied": {
			reply{trip: 2 * time.Second, Answer: ahead(10, 0, 10*time.Second, 5*ms)},
			reply{trip: 800 * ms, Answer: denied(10, 0, 20*time.Second, 10*time.Second)},
			reply{}, 10 * time.Second, 12 * time.Second,
		},
		"there is room again": {
			reply{trip: 2 * time.Second, Answer: ahead(10, 0, 100*time.Second, 5*ms)},
			reply{trip: 800 * ms, Answer: admitted(10, 1, 90*time.Second)},
			reply{}, 2800 * ms, 2800 * ms,
		},
		"the first is lost": { // and counts no more, so the third is the newest
			reply{trip: 2 * time.Second, err: errLost},
			reply{trip: 800 * ms, Answer: ahead(10, 0, 10*time.Second, 5*ms)},
			reply{trip: 10 * ms, Answer: ahead(10, 0, 100*time.Second, 5*ms)}, 12 * time.Second, 13 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			replies := []reply{{trip: 800 * ms, Answer: admitted(10, 2, 8*time.Second)}, c.first, c.second}
			if c.third != (reply{}) {
				replies = append(replies, c.third)
			}
			play(t, queue.Bucket, replies, func(t *testing.T, s *script) {
				for range len(replies) + 1 {
					s.join(t.Context(), 1)
				}
				s.untilAsked(len(replies) + 1)
				at := s.questions()[len(replies)].at
				require.GreaterOrEqual(t, at, c.from)
				require.LessOrEqual(t, at, c.to)
				s.wg.Wait()
			})
		})
	}
}

// One quick answer does not mean that the next one will be quick. Nor does a window that is about
// to end mean that events come fast.
func TestAnExceptionIsNotTheRule(t *testing.T) {
	second := ahead(10, 0, 2*time.Second, 59*ms) // one event each 200 ms; its own comes at 220 ms
	play(t, queue.Bucket, []reply{
		{trip: 40 * ms, Answer: ahead(10, 0, 2*time.Second, ms)}, {trip: 2 * ms, Answer: second},
	}, func(t *testing.T, s *script) {
		for range 3 {
			s.join(t.Context(), 1)
		}
		s.wg.Wait()
		require.LessOrEqual(t, s.sent(t, 3)[2], 400*ms, "in time for an answer in 40 ms, though the last took 2")
	})
	slow, fast := ahead(10, 0, time.Second, 5*ms), ahead(10, 0, 10*ms, 5*ms) // 100 ms, and 1 ms
	trip := func(d queue.Answer) reply { return reply{trip: 10 * ms, Answer: of(d, queue.Bucket, d)} }
	play(t, queue.Early, []reply{trip(slow), trip(fast), trip(fast), trip(fast)}, func(t *testing.T, s *script) {
		for range 4 {
			s.join(t.Context(), 1)
		}
		s.wg.Wait()
		sent := s.sent(t, 4)
		require.GreaterOrEqual(t, sent[3]-sent[2], 10*ms, "one by one")
	})
}

// If turns are given, there may be room for a few events, and not in time for many. This then
// applies to all callers that come before that turn.
func TestATurnThatComesTooLateIsToldToThoseBehind(t *testing.T) {
	play(t, queue.Leaky, []reply{
		{trip: 10 * ms, Answer: denied(4, 1, 2*time.Second, time.Second)}, {Answer: denied(4, 4, 2*time.Second, 30*time.Second)},
	}, func(t *testing.T, s *script) {
		two, one := s.until(t, 2, 20*time.Second), s.until(t, 1, 5*time.Second)
		s.at(1500 * ms)
		require.ErrorIs(t, two.err, queue.ErrTooLate)
		one.refusedUnasked(t)
		s.sent(t, 2)
	})
	play(t, queue.Turns, []reply{
		{trip: time.Second, Answer: denied(4, 1, 2*time.Second, 500*ms)}, {trip: 10 * time.Second, Answer: admitted(4, 0, time.Second)},
	}, func(t *testing.T, s *script) {
		s.until(t, 1, 5*time.Second)
		s.join(t.Context(), 1)
		s.at(1500 * ms)
		late := s.until(t, 1, 7*time.Second) // a turn at 6.5 s is too far away for a caller that waits a second for the answer
		late.refusedUnasked(t)
		s.sent(t, 2)
	})
}

// The caller has asked with all of its time, so it need not ask again.
func TestACallerThatAskedWithAllItsTimeDoesNotAskAgain(t *testing.T) {
	short := denied(5, 0, time.Second, 3*ms)
	play(t, queue.Early, []reply{{Answer: of(short, queue.Bucket, short)}}, func(t *testing.T, s *script) {
		c := s.until(t, 1, 5*ms)
		require.ErrorIs(t, c.err, queue.ErrTooLate)
		require.Equal(t, 8*ms, c.RetryAfter, "from now on, without a sleep")
		require.Equal(t, 5*ms, s.questions()[0].within, "nothing is taken that it cannot wait for")
	})
	play(t, queue.Unknown, []reply{{Answer: denied(5, 4, time.Second, 3*ms)}}, func(t *testing.T, s *script) { // so it has turns
		c := s.until(t, 1, 5*ms)
		require.ErrorIs(t, c.err, queue.ErrTooLate)
		require.Equal(t, 8*ms, c.RetryAfter)
	})
	for _, d := range []queue.Answer{
		denied(5, 4, time.Second, ms), // its turn is too far away
		of(denied(5, 0, time.Second, ms), queue.Bucket, denied(5, 0, time.Second, ms)),
	} {
		play(t, queue.Foreign, []reply{{trip: 400 * ms, Answer: ahead(5, 4, time.Second, 10*time.Second)}, {Answer: d}}, func(t *testing.T, s *script) {
			s.join(t.Context(), 1)
			s.at(500 * ms)
			c := s.until(t, 1, 20*time.Second)
			require.ErrorIs(t, c.err, queue.ErrTooLate)
			require.True(t, c.Asked)
			s.sent(t, 2)
		})
	}
}

// A slow answer leaves little time for the turn, but the next one may be quick.
func TestACallerWithLittleTimeAsksForMostOfIt(t *testing.T) {
	play(t, queue.Leaky, []reply{{trip: time.Second, Answer: admitted(6, 5, 500*ms)}}, func(t *testing.T, s *script) {
		s.join(t.Context(), 1)
		s.until(t, 1, 3*time.Second)
		s.wg.Wait()
		s.sent(t, 2)
		require.Greater(t, s.questions()[1].within, time.Second, "2 s are left")
	})
}

// A turn just before the end is useful, however long the answer takes, because events are taken in
// advance.
func TestATurnAtTheLastMomentIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter("token_bucket", 1, time.Second)
		l.decide(1, 0)
		l.far(30 * ms)
		cs := newCallers(l)
		cs.join(t.Context(), 1, time.Time{}, false)
		time.Sleep(100 * ms)
		cs.join(t.Context(), 1, cs.began.Add(2040*ms), false) // its turn comes at 2 s, and is heard of 30 ms later
		require.Len(t, cs.check(t), 2)
	})
}

// Limiters that cannot be keys of a map have queues of their own, which know as much about them. A
// caller without a deadline waits for any turn.
func TestACallerWithoutADeadlineAsksForAnyTurn(t *testing.T) {
	for _, l := range []any{nil, []int{1}, math.NaN(), new(script)} {
		play(t, queue.Leaky, nil, func(t *testing.T, s *script) {
			require.NoError(t, s.joinWith(t.Context(), 1, queue.Waiter{Limiter: l}).err)
			require.GreaterOrEqual(t, s.questions()[0].within, 99*365*24*time.Hour)
		})
	}
}

// A caller that is refused without a question learns the current state from the last answer, and
// the reason from the last denial.
func TestCallersRefusedWithoutAQuestionGetTheLastAnswers(t *testing.T) {
	why := denied(1, 0, time.Hour, time.Second)
	why.Info = "why"
	play(t, queue.Bucket, []reply{{Answer: why}, {Answer: ahead(100, 0, 10*time.Hour, ms)}}, func(t *testing.T, s *script) {
		s.join(t.Context(), 1)
		s.join(t.Context(), 1)
		s.at(1500 * ms)
		c := s.until(t, 1, time.Minute)
		c.refusedUnasked(t)
		require.Equal(t, "why", c.Info)
		require.Equal(t, 10*time.Hour-(1500*ms-s.sent(t, 2)[1]), c.ResetAfter)
	})
	play(t, queue.Plain, []reply{
		{trip: 10 * ms, Answer: admitted(3, 0, 3*time.Second)}, {trip: time.Hour, Answer: admitted(3, 0, 3*time.Second)},
	}, func(t *testing.T, s *script) {
		s.join(t.Context(), 1)
		s.join(t.Context(), 1)
		c := s.joinWith(t.Context(), 1, queue.Waiter{Limiter: s, Max: time.Second})
		least := s.joinWith(t.Context(), 1, queue.Waiter{Limiter: s, Max: 1})
		s.at(time.Minute)
		c.refusedUnasked(t)
		least.refusedUnasked(t)
		require.Equal(t, time.Second, c.ended)
		require.LessOrEqual(t, least.ended, ms, "a nanosecond is a time as well")
		require.Equal(t, 3, c.Limit)
		require.Positive(t, c.RetryAfter)
	})
}

// The caller's question would be useless, while the callers behind it have time.
func TestACallerWithoutTimeForAnAnswerMakesWay(t *testing.T) {
	play(t, queue.Plain, []reply{{trip: time.Second, Answer: admitted(10, 5, time.Second)}}, func(t *testing.T, s *script) {
		s.join(t.Context(), 1)
		c := s.joinWith(t.Context(), 1, queue.Waiter{Limiter: s, Max: 1500 * ms})
		s.wg.Wait()
		c.refusedUnasked(t)
		require.Equal(t, time.Second, c.ended)
		s.sent(t, 1)
	})
}

// The question was for a turn without a sleep, and was denied. That is not a reason for others to
// wait.
func TestACallerWithoutAPlaceHoldsUpNobody(t *testing.T) {
	play(t, queue.Leaky, []reply{
		{Answer: ahead(5, 1, 10*time.Second, 10*time.Second)}, {Answer: denied(5, 1, 10*time.Second, 10*time.Second)},
	}, func(t *testing.T, s *script) {
		places := &queue.Places{Most: 1}
		s.joinWith(t.Context(), 1, queue.Waiter{Limiter: s, Places: places})
		c := s.joinWith(t.Context(), 1, queue.Waiter{Limiter: s, Places: places})
		require.ErrorIs(t, c.err, queue.ErrFull)
		require.Zero(t, s.questions()[1].within)
		s.join(t.Context(), 1)
		require.Zero(t, s.sent(t, 3)[2])
	})
}

// The permit goes to the first caller that wants as many events. The caller that is then first
// wakes at its own time, not at that turn.
func TestAPermitIsHandedOn(t *testing.T) {
	play(t, queue.Turns, []reply{
		{Answer: ahead(5, 0, time.Second, 10*time.Second)}, {Answer: denied(5, 0, time.Second, 2*time.Second)},
	}, func(t *testing.T, s *script) {
		ctx, leave := context.WithCancel(t.Context())
		s.join(ctx, 1)
		next := s.join(t.Context(), 1)
		s.join(t.Context(), 1)
		s.at(time.Second)
		leave()
		s.wg.Wait()
		require.Zero(t, s.refunds)
		require.Equal(t, 10*time.Second, next.ended)
		require.Equal(t, 2*time.Second, s.sent(t, 3)[2])
	})
	play(t, queue.Turns, []reply{
		{Answer: ahead(5, 0, time.Second, 10*time.Second)}, {Answer: denied(5, 0, time.Second, 2*time.Second)},
	}, func(t *testing.T, s *script) { // a leaving caller does not search a long queue for one that can take the permit
		ctx, leave := context.WithCancel(t.Context())
		s.join(ctx, 1)
		for range 100 {
			s.join(t.Context(), 2)
		}
		s.join(t.Context(), 1)
		s.at(time.Second)
		leave()
		s.wg.Wait()
		require.Equal(t, 1, s.refunds)
	})
}
