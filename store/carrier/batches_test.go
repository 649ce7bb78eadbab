package carrier

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Calls come, leave and are taken in any order. Each that stays goes in its turn, with those that came together with
// it, and those that have left take no more memory than the others.
func TestAQueueKeepsThoseWhoStayInOrder(t *testing.T) {
	const spread = 2 * ms
	rng := rand.New(rand.NewPCG(1, 2))
	for _, leave := range []int{1, 3, 6} { // of 8 steps, of which in one a batch is taken
		var q queue[int]
		var model []*batch[int] // in order, with some of which all have left
		now := time.Unix(1_000, 0)
		for range 4_000 {
			now = now.Add(time.Duration(rng.IntN(3)) * ms)
			most := 1 + rng.IntN(6)
			switch n := rng.IntN(8); {
			case n == 0:
				for len(model) > 0 && model[0].living == 0 {
					model = model[1:]
				}
				var want *batch[int]
				if len(model) > 0 && model[0].living <= most {
					want, model = model[0], model[1:]
				}
				require.Same(t, want, q.take(most))
			case n <= leave && len(model) > 0:
				if b := model[rng.IntN(len(model))]; b.living > 0 {
					b.drop(1 + rng.IntN(b.living))
				}
			default:
				b := q.last(now, most, spread)
				if n := len(model); n > 0 {
					last := model[n-1]
					joins := last.living > 0 && len(last.calls) < most && now.Sub(last.begun) < spread
					require.Equal(t, joins, b != nil)
					require.True(t, b == nil || b == last)
				}
				if b == nil {
					b = &batch[int]{queue: &q, begun: now}
					q.batches, model = append(q.batches, b), append(model, b)
				}
				b.calls = append(b.calls, Carried[int]{})
				b.living++
				q.living++
			}
			calls, batches := 0, 0
			for _, b := range model {
				if calls += b.living; b.living > 0 {
					batches++
				}
			}
			require.Equal(t, calls, q.living)
			require.Equal(t, len(q.batches)-batches, q.dead)
			require.LessOrEqual(t, len(q.batches), 2*batches+17)
		}
	}
}

// What was taken is used again, or freed, and not kept by the queue that it has left.
func TestAQueueForgetsWhatWasTaken(t *testing.T) {
	q := queue[int]{living: 2}
	q.batches = []*batch[int]{{queue: &q, living: 1}, {queue: &q, living: 1}}
	all := q.batches
	for i := range all {
		require.NotNil(t, q.take(1))
		require.Nil(t, all[i])
	}
	require.Zero(t, q.living)
}
