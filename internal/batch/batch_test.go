package batch_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/batch"
	"github.com/ratelimit-go/ratelimit/internal/pending"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// seen is a store that keeps the last requests.
type seen struct {
	store.Store
	requests []store.Request
}

func (s *seen) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	s.requests = append([]store.Request(nil), requests...)
	return s.Store.Decide(ctx, requests, replies)
}

// requestsOf are what limiters of these limits ask a store for.
func requestsOf(t *testing.T, s store.Store, algorithms []string, limits []ratelimit.Limit) (requests []store.Request) {
	t.Helper()
	for i, algorithm := range algorithms {
		of := &seen{Store: s}
		l, err := ratelimit.New(algorithm, of, limits[i])
		require.NoError(t, err)
		_, err = l.Peek(t.Context(), "key")
		require.NoError(t, err)
		of.requests[0].Op = store.OpTake
		requests = append(requests, of.requests[0])
	}
	return requests
}

// The reply that is foreseen for the next claim is the one that the store gives.
func TestTheNextClaimIsToldWhatTheStoreSays(t *testing.T) {
	algorithms := []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "leaky_bucket"}
	random := rand.New(rand.NewPCG(5, 1))
	known := 0
	for range 2000 {
		now := time.Unix(1_800_000_000, 0)
		mem, err := memstore.New(memstore.WithClock(func() time.Time { return now }))
		require.NoError(t, err)
		var names []string
		var limits []ratelimit.Limit
		for range 1 + random.IntN(3) {
			rate := 1 + random.IntN(20)
			names, limits = append(names, algorithms[random.IntN(5)]), append(limits, ratelimit.Limit{Rate: rate, Period: time.Duration(1+random.IntN(7)) * time.Second})
		}
		requests := requestsOf(t, mem, names, limits)
		ask := func(claims int) *batch.Batch {
			b := new(batch.Batch)
			same := make([]batch.Claim, claims)
			n := 1 + random.IntN(3)*random.IntN(2)
			for i := range same {
				same[i] = batch.NewClaim(len(requests), func(int) int64 { return int64(n) })
			}
			b.Make(len(requests), same, new(pending.Patience))
			copy(b.Requests, requests)
			for i := range b.Parts {
				if len(requests) > 1 || n > 1 { // or else all that is wanted is taken
					b.Parts[i].Want += int64(random.IntN(3) * random.IntN(2))
				}
			}
			b.Ask(t.Context(), mem)
			require.NoError(t, b.Err)
			require.Nil(t, b.Panicked)
			return b
		}
		for range 1 + random.IntN(4) {
			ask(1 + random.IntN(4))
			now = now.Add(time.Duration(random.Int64N(int64(3 * time.Second))))
		}
		b := ask(1 + random.IntN(30))
		if b.Next == nil {
			continue
		}
		known++
		for i, r := range b.Next {
			q := requests[i]
			want, err := store.Peek(t.Context(), mem, q.Namespace, q.Key, q.Limit, b.NextN[i])
			require.NoError(t, err)
			rule, n := q.Namespace.Rule, b.NextN[i]
			if got := r.Plainly(rule, q.Limit, n, 0); r.Outcome != store.Admitted {
				require.Equal(t, want.Plainly(rule, q.Limit, n, 0), got, "%s %+v", rule.Name, q.Limit)
			} else {
				require.True(t, want.OK())
				require.Equal(t, want.Available(rule, q.Limit), r.Available(rule, q.Limit), rule.Name)
				require.Equal(t, want.Report(rule, q.Limit, n, 0), r.Report(rule, q.Limit, n, 0), rule.Name)
			}
		}
	}
	require.Greater(t, known, 500)
}

// As many claims are charged as fit, from the first on, and nothing else.
func TestAsManyClaimsAreChargedAsFit(t *testing.T) {
	random := rand.New(rand.NewPCG(6, 1))
	for range 2000 {
		mem, err := memstore.New()
		require.NoError(t, err)
		room := []int{1 + random.IntN(40), 1 + random.IntN(40)}
		requests := requestsOf(t, mem, []string{"fixed_window", "sliding_log"}, []ratelimit.Limit{ratelimit.PerDay(room[0]), ratelimit.PerDay(room[1])})
		claims := make([]batch.Claim, random.IntN(20))
		fit, full := 0, false
		left := [2]int64{int64(room[0]), int64(room[1])}
		for c := range claims {
			claims[c] = batch.NewClaim(2, func(int) int64 { return int64(1 + random.IntN(4)) })
			if n := claims[c].N; !full && n[0] <= left[0] && n[1] <= left[1] {
				fit++
				left = [2]int64{left[0] - n[0], left[1] - n[1]}
			} else {
				full = true
			}
		}
		b := new(batch.Batch)
		b.Make(2, claims, new(pending.Patience))
		copy(b.Requests, requests)
		b.Ask(t.Context(), mem)
		require.NoError(t, b.Err)
		require.Nil(t, b.Panicked)
		require.Equal(t, fit, b.Fit)
		require.LessOrEqual(t, b.Asked, 2)
		for i, q := range requests {
			r, err := store.Peek(t.Context(), mem, q.Namespace, q.Key, q.Limit, 1)
			require.NoError(t, err)
			require.Equal(t, left[i], r.Available(q.Namespace.Rule, q.Limit))
		}
		again := b.Answer(func(batch.Claim, []store.Reply) {}, func(batch.Claim, []store.Reply) {})
		for _, c := range again {
			require.NotEqual(t, b.NextN, c.N)
			require.False(t, c.Done())
		}
		for c, claim := range claims {
			if claim.Done() {
				v, err := claim.Wait(t.Context(), new(pending.Patience), "key", nil)
				require.NoError(t, err)
				require.Equal(t, c < fit, v.OK)
			}
		}
	}
}

// busy is a store of which others give back, or take, before each call.
type busy struct {
	store.Store
	before func()
}

func (s busy) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	s.before()
	return s.Store.Decide(ctx, requests, replies)
}

// Whatever others do between the calls, claims that are admitted are charged, and the others are
// denied.
func TestNobodyIsAdmittedWithoutACharge(t *testing.T) {
	algorithms := []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "leaky_bucket"}
	random := rand.New(rand.NewPCG(7, 1))
	soon, room := 0, int64(0)
	for range 4000 {
		mem, err := memstore.New(memstore.WithClock(func() time.Time { return time.Unix(1_800_000_000, 0) }))
		require.NoError(t, err)
		names := []string{algorithms[random.IntN(4)], algorithms[random.IntN(4)]}[:1+random.IntN(2)]
		rates := []int{1 + random.IntN(20), 1 + random.IntN(20)}
		var limits []ratelimit.Limit
		for i := range names {
			limits = append(limits, ratelimit.Limit{Rate: rates[i], Period: time.Duration(1+i) * time.Hour})
		}
		requests := requestsOf(t, mem, names, limits)
		others := make([]store.Reply, len(requests))
		taken := make([]int64, len(requests)) // by others
		for i, q := range requests {
			n := int64(1 + random.IntN(rates[i]))
			others[i], err = mem.Take(t.Context(), q.Namespace, q.Key, q.Limit, n)
			require.NoError(t, err)
			taken[i] = n
		}
		charged := slices.Clone(taken)
		s := busy{mem, func() {
			for i, q := range requests {
				if n := min(taken[i], int64(random.IntN(4)*random.IntN(2))); n > 0 {
					require.NoError(t, mem.Refund(t.Context(), q.Namespace, q.Key, q.Limit, others[i].Receipt(q.Namespace.Rule, q.Limit, charged[i], n)))
					taken[i] -= n
				}
			}
		}}
		claims := make([]batch.Claim, 1+random.IntN(8))
		for c := range claims {
			claims[c] = batch.NewClaim(len(requests), func(int) int64 { return int64(1 + random.IntN(3)*random.IntN(2)) })
		}
		admitted := make([]int64, len(requests))
		for rounds := 0; len(claims) > 0; rounds++ {
			require.Less(t, rounds, 20)
			b := new(batch.Batch)
			b.Make(len(requests), claims, new(pending.Patience))
			copy(b.Requests, requests)
			b.Ask(t.Context(), s)
			require.NoError(t, b.Err)
			again := b.Answer(func(c batch.Claim, _ []store.Reply) {
				for i, n := range c.N {
					admitted[i] += n
				}
			}, func(batch.Claim, []store.Reply) {})
			for _, c := range claims {
				if !c.Done() {
					continue
				}
				v, err := c.Wait(t.Context(), new(pending.Patience), "key", nil)
				require.NoError(t, err)
				if v.OK {
					continue
				}
				require.False(t, store.AllOK(b.Requests, v.Replies))
				for i, r := range v.Replies {
					if !r.OK() && r.X == 1 {
						soon, room = soon+1, room+r.Y
						require.Equal(t, store.DeniedPlainly, r.Outcome)
						require.GreaterOrEqual(t, r.Y, int64(0))
						require.Less(t, r.Y, c.N[i])
					}
				}
			}
			claims = again
		}
		for i, q := range requests {
			r, err := store.Peek(t.Context(), mem, q.Namespace, q.Key, q.Limit, 1)
			require.NoError(t, err)
			require.Equal(t, int64(rates[i])-taken[i]-admitted[i], r.Available(q.Namespace.Rule, q.Limit), names[i])
		}
	}
	require.Positive(t, soon)
	require.Positive(t, room)
}

// What is owed is paid before anybody is admitted.
func TestOwedEventsComeFirst(t *testing.T) {
	for owed, fit := range map[int64]int{0: 3, 2: 3, 8: 2, 10: 0, 12: 0} {
		mem := ratelimit.Must(memstore.New(memstore.WithClock(func() time.Time { return time.Unix(1_800_000_000, 0) })))
		b := new(batch.Batch)
		one := func(int) int64 { return 1 }
		b.Make(1, []batch.Claim{batch.NewClaim(1, one), batch.NewClaim(1, one), batch.NewClaim(1, one)}, new(pending.Patience))
		b.Requests[0] = requestsOf(t, mem, []string{"fixed_window"}, []ratelimit.Limit{ratelimit.PerHour(10)})[0]
		p := &b.Parts[0]
		p.Owed, p.Want = owed, p.Want+owed
		b.Ask(t.Context(), mem)
		require.NoError(t, b.Err)
		require.Equal(t, fit, b.Fit, "%d owed", owed)
		require.Equal(t, min(10, owed+3), p.Granted, "%d owed", owed)
		require.Equal(t, max(0, owed-10), p.Forced, "%d owed", owed)
	}
}

// between is a store of which a function may change the state, and the replies, of each Decide.
type between struct {
	store.Store
	trip  time.Duration
	calls int
	do    func(call int, replies []store.Reply)
}

func (s *between) Timeout() time.Duration { return 150 * time.Millisecond }

func (s *between) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	s.calls++
	time.Sleep(s.trip)
	if s.do != nil {
		s.do(s.calls, nil)
	}
	err := s.Store.Decide(ctx, requests, replies)
	if s.do != nil && err == nil {
		s.do(s.calls, replies)
	}
	return err
}

// askedOf returns a batch of a log and a window, with so many events of each limit and claims for so many, that has
// asked a store. In between, others give back what they have taken.
func askedOf(t *testing.T, rate, taken, lease, n, claims int, do func(call int, replies []store.Reply)) *batch.Batch {
	t.Helper()
	mem := ratelimit.Must(memstore.New(memstore.WithClock(func() time.Time { return time.Unix(1_800_000_000, 0) })))
	limits := []ratelimit.Limit{ratelimit.PerHour(rate), ratelimit.PerDay(100)}
	requests := requestsOf(t, mem, []string{"sliding_log", "fixed_window"}, limits)
	q := requests[0]
	others, err := mem.Take(t.Context(), q.Namespace, q.Key, q.Limit, int64(taken))
	require.NoError(t, err)
	b, each := new(batch.Batch), make([]batch.Claim, claims)
	for i := range each {
		each[i] = batch.NewClaim(2, func(int) int64 { return int64(n) })
	}
	b.Make(2, each, new(pending.Patience))
	copy(b.Requests, requests)
	b.Parts[0].Want += int64(lease)
	b.Ask(t.Context(), &between{Store: mem, do: func(call int, replies []store.Reply) {
		if call == 2 && replies == nil {
			require.NoError(t, mem.Refund(t.Context(), q.Namespace, q.Key, q.Limit, others.Receipt(q.Namespace.Rule, q.Limit, int64(taken), int64(taken))))
		}
		if do != nil && replies != nil {
			do(call, replies)
		}
	}})
	require.NoError(t, b.Err)
	return b
}

// Room that others give back after a denial does not admit those who were denied. They are told of the room
// that there was, and may ask again at once. Room that comes after an admission is no reason to deny.
func TestRoomThatComesLateIsForThoseWhoAskAgain(t *testing.T) {
	b := askedOf(t, 8, 5, 0, 5, 2, nil)
	require.Zero(t, b.Fit)
	require.EqualValues(t, 3, b.Next[0].Y, "of 5 that it asked for, 3 were there")
	require.EqualValues(t, 1, b.Next[0].X)
	require.True(t, b.Next[1].OK())

	b = askedOf(t, 6, 1, 3, 2, 1, nil)
	require.Equal(t, 1, b.Fit)
	require.True(t, store.AllOK(b.Requests, b.Next), "the lease has taken the last events, and others have given one back")

	b = askedOf(t, 20, 1, 0, 2, 2, func(call int, replies []store.Reply) {
		if call == 1 { // of a store of somebody else
			replies[0] = store.Reply{Outcome: store.DeniedPlainly, X: 1, Y: 19}
		}
	})
	require.Zero(t, b.Fit)
	for i, r := range b.Next {
		require.False(t, r.OK(), "the store has denied, although it reports room: part %d", i)
	}
}

// A store that looks, answers: callers that wait for the next batch go on waiting.
func TestALookIsHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := ratelimit.Must(memstore.New())
		s := &between{Store: mem, trip: 100 * time.Millisecond}
		p, last, waiting := pending.PatienceWith(s), new(pending.Answered), pending.New[int]()
		b := new(batch.Batch)
		b.Make(1, []batch.Claim{batch.NewClaim(1, func(int) int64 { return 2 })}, p)
		b.Requests[0] = requestsOf(t, mem, []string{"sliding_log"}, []ratelimit.Limit{ratelimit.PerHour(5)})[0]
		b.Parts[0].Last, b.Parts[0].Want = last, 5
		go func() {
			b.Ask(t.Context(), s)
			time.Sleep(s.trip) // of the next batch
			waiting.Answer(7, nil)
		}()
		got, err := waiting.Wait(t.Context(), p, "key", last)
		require.NoError(t, err)
		require.Equal(t, 7, got)
		require.Equal(t, 2, s.calls)
		time.Sleep(time.Second) // the timers have run
	})
}
