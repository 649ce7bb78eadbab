package suite_test

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/store"
)

const microseconds = 3600_000_000 // of an hour

// ledger is a bucket in rational numbers that knows whose each event is. They drain in
// their order.
type ledger struct {
	rate, burst int64    // events an hour: servers expire keys in real time
	now         *big.Rat // hours since the start
	charges     []*charged
	flows       []movement
}

// charged is a charge of n events, for which r was answered.
type charged struct {
	r        ratelimit.Result
	n        int64
	at, ends *big.Rat // when it was charged, and when the level that it left behind has drained
	left     *big.Rat // of its events
	debt     bool     // it left a level above the Burst
	refunded bool
}

// movement is what was admitted at an instant; below 0, what was given back.
type movement struct{ at, events *big.Rat }

func (b *ledger) level() *big.Rat {
	sum := new(big.Rat)
	for _, c := range b.charges {
		sum.Add(sum, c.left)
	}
	return sum
}

// behind is what is left behind charge i.
func (b *ledger) behind(i int) *big.Rat {
	sum := new(big.Rat)
	for _, c := range b.charges[i+1:] {
		sum.Add(sum, c.left)
	}
	return sum
}

// take takes events from the oldest, as far as there are any.
func (b *ledger) take(events *big.Rat) {
	for _, c := range b.charges {
		some := lesser(events, c.left)
		c.left, events = new(big.Rat).Sub(c.left, some), new(big.Rat).Sub(events, some)
	}
}

func (b *ledger) advance(d time.Duration) {
	dt := big.NewRat(d.Microseconds(), microseconds)
	b.now = new(big.Rat).Add(b.now, dt)
	b.take(dt.Mul(dt, big.NewRat(b.rate, 1)))
}

func (b *ledger) charge(r ratelimit.Result, n int64, admitted bool) {
	c := &charged{r: r, n: n, at: b.now, left: big.NewRat(n, 1)}
	b.charges = append(b.charges, c)
	level := b.level()
	c.debt = level.Cmp(big.NewRat(b.burst, 1)) > 0
	c.ends = level.Add(level.Quo(level, big.NewRat(b.rate, 1)), b.now)
	if admitted {
		b.flows = append(b.flows, movement{b.now, c.left})
	}
}

// most is the most that a refund of c may give back: by what was known when it was
// charged, which later refunds of what was before it do not change.
func (b *ledger) most(c *charged) *big.Rat {
	still := new(big.Rat).Sub(c.ends, b.now)
	if still.Sign() < 0 {
		return new(big.Rat)
	}
	return lesser(lesser(big.NewRat(c.n, 1), still.Mul(still, big.NewRat(b.rate, 1))), b.level())
}

// refund gives back so many events of c, and then of others.
func (b *ledger) refund(c *charged, events *big.Rat) {
	own := lesser(events, c.left)
	c.left, c.refunded = new(big.Rat).Sub(c.left, own), true
	b.take(new(big.Rat).Sub(events, own))
	b.flows = append(b.flows, movement{b.now, new(big.Rat).Neg(events)})
}

// minted is by how much what was admitted, and not given back, is in some interval x
// above Burst + rate*(x + 1 µs).
func (b *ledger) minted() (most *big.Rat) {
	most = new(big.Rat)
	for i := range b.flows {
		sum := new(big.Rat)
		for _, f := range b.flows[i:] {
			sum.Add(sum, f.events)
			x := new(big.Rat).Sub(f.at, b.flows[i].at)
			may := x.Mul(x.Add(x, big.NewRat(1, microseconds)), big.NewRat(b.rate, 1))
			if over := new(big.Rat).Sub(sum, may.Add(may, big.NewRat(b.burst, 1))); over.Cmp(most) > 0 {
				most = over
			}
		}
	}
	return most
}

func lesser(x, y *big.Rat) *big.Rat {
	if x.Cmp(y) < 0 {
		return x
	}
	return y
}

func number(x *big.Rat) float64 {
	f, _ := x.Float64()
	return f
}

// TestDebtsAreGivenBackAsFarAsTheyAreStillCharged holds both buckets on both stores to
// the ledger: several debts, admissions between them, and refunds in any order, each of
// a whole charge. What is still charged comes back, to what drains in 1 µs; and more
// only where what was charged before has been refunded, which no state knows.
func TestDebtsAreGivenBackAsFarAsTheyAreStillCharged(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, c *clock) {
		if !hasBurst(algorithm) {
			return
		}
		later := 0 // refunds of debts after others were admitted
		tails := 0 // refunds of what is the last that is left, and was not the last to come
		for seed := range uint64(effort.Of(20, 40, 100)) {
			rng := rand.New(rand.NewPCG(seed, 21))
			b := &ledger{rate: 1 + rng.Int64N(7), burst: 1 + rng.Int64N(20), now: new(big.Rat)}
			lim := newLimiter(t, algorithm, s, ratelimit.Limit{Rate: int(b.rate), Period: time.Hour, Burst: int(b.burst)},
				ratelimit.WithName(fmt.Sprint("seed ", seed)))
			level := func() *big.Rat { return big.NewRat(b.rate*peek(t, lim, "key").ResetAfter.Microseconds(), microseconds) }
			slack := func() float64 { return float64(b.rate*int64(len(b.flows)+2)) / microseconds }
			refunds := 0
			for range 60 {
				switch rng.IntN(6) {
				case 0:
					n := 1 + rng.Int64N(b.burst+5)
					b.charge(overcharge(t, lim, int(n)), n, false)
				case 1, 2:
					n := 1 + rng.Int64N(max(1, int64(peek(t, lim, "key").Remaining)))
					if r := allowN(t, lim, int(n)); r.Allowed {
						b.charge(r, n, true)
						require.LessOrEqual(t, number(b.level()), float64(b.burst)+slack())
					}
				case 3:
					if len(b.charges) == 0 {
						break
					}
					i := len(b.charges) - 1 - rng.IntN(min(len(b.charges), 4))
					e, last, behind := b.charges[i], b.charges[len(b.charges)-1], b.behind(i)
					if e.refunded {
						break
					}
					least, most, before := e.left, b.most(e), b.level()
					if algorithm == "leaky_bucket" && number(behind) > slack() { // not its tail
						least = new(big.Rat)
						if e.at.Cmp(last.at) != 0 {
							most = least
						}
					}
					require.NoError(t, lim.Refund(t.Context(), "key", e.r, int(e.n)))
					given := new(big.Rat).Sub(before, level())
					require.GreaterOrEqual(t, number(given), number(least)-slack(), "seed %d: what is still charged comes back", seed)
					require.LessOrEqual(t, number(given), number(most)+slack(), "seed %d", seed)
					if refunds == 0 {
						require.InDelta(t, number(given), number(least), slack(), "seed %d: and no more", seed)
					}
					if e.debt && least.Sign() > 0 && behind.Sign() > 0 && !last.debt {
						later++
					}
					if e != last && least.Sign() > 0 && behind.Sign() == 0 {
						tails++
					}
					if given.Sign() < 0 {
						given = new(big.Rat)
					}
					b.refund(e, given)
					refunds++
				default:
					d := time.Duration(rng.Int64N(int64(4 * time.Hour))).Truncate(time.Microsecond)
					c.Advance(d)
					b.advance(d)
				}
				require.InDelta(t, number(b.level()), number(level()), slack(), "seed %d: the level", seed)
			}
			require.LessOrEqual(t, number(b.minted()), slack(), "seed %d", seed)
		}
		if algorithm != "leaky_bucket" {
			require.Greater(t, later, effort.Of(0, 2, 5), "the traces have what this is about")
		} else {
			require.Greater(t, tails, effort.Of(0, 2, 5), "the traces have what this is about")
		}
	})
}
