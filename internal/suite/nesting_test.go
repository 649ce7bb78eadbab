package suite_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/accesslist"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/testkit"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/shadow"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/throttle"
)

// model is what a limiter decides while the clock stands still: the five algorithms are
// counters then, and the wrappers around them are a line each.
type model interface {
	// fits is whether n events are admitted.
	fits(n int) bool
	// charge charges n events that are admitted. undo gives them back.
	charge(n int) (undo func())
	// upTo charges as many of n events as fit.
	upTo(n int) (granted int, undo func())
	// overdraw charges n events that have happened already.
	overdraw(n int) (undo func())
	// down is what is answered while the store fails.
	down() outcome
	reset()
}

type outcome string

const (
	fails   outcome = "an error"
	admits  outcome = "an admission"
	denies  outcome = "a denial"
	unknown outcome = "not told by the model"
)

// counted is one of the five.
type counted struct{ used, limit int }

func (c *counted) fits(n int) bool { return c.used+n <= c.limit }
func (c *counted) charge(n int) func() {
	c.used += n
	return func() { c.used -= n }
}
func (c *counted) upTo(n int) (int, func()) { return upTo(c, n) }
func (c *counted) overdraw(n int) func()    { return c.charge(n) }
func (c *counted) down() outcome            { return fails }
func (c *counted) reset()                   { c.used = 0 }

// upTo asks m for as many of n events as it admits at once.
func upTo(m model, n int) (granted int, undo func()) {
	for n > 0 && !m.fits(n) {
		n--
	}
	if n == 0 {
		return 0, func() {}
	}
	return n, m.charge(n)
}

// both is an All.
type both struct{ model, other model }

func (b both) fits(n int) bool { return b.model.fits(n) && b.other.fits(n) }
func (b both) charge(n int) func() {
	undo, other := b.model.charge(n), b.other.charge(n)
	return func() { undo(); other() }
}
func (b both) overdraw(n int) func() {
	undo, other := b.model.overdraw(n), b.other.overdraw(n)
	return func() { undo(); other() }
}
func (b both) upTo(n int) (int, func()) { return upTo(b, n) }
func (b both) reset()                   { b.model.reset(); b.other.reset() }
func (b both) down() outcome {
	if o := b.model.down(); o != admits {
		return o
	}
	return b.other.down()
}

// either is a First.
type either struct{ model, other model }

func (e either) one(n int) model {
	if e.model.fits(n) {
		return e.model
	}
	return e.other
}
func (e either) fits(n int) bool          { return e.one(n).fits(n) }
func (e either) charge(n int) func()      { return e.one(n).charge(n) }
func (e either) upTo(n int) (int, func()) { return upTo(e, n) }
func (e either) overdraw(int) func()      { panic("not told by the model") }
func (e either) reset()                   { e.model.reset(); e.other.reset() }
func (e either) down() outcome {
	if o := e.model.down(); o != denies {
		return o
	}
	return e.other.down()
}

// leaving is one of the five that leaves some of its events to others.
type leaving struct {
	*counted
	reserved int
}

func (l leaving) fits(n int) bool          { return l.counted.fits(n + l.reserved) }
func (l leaving) upTo(n int) (int, func()) { return upTo(l, n) }

// once counts calls. What has happened already is of calls that it has charged.
type once struct{ model }

func (o once) fits(int) bool            { return o.model.fits(1) }
func (o once) charge(int) func()        { return o.model.charge(1) }
func (o once) upTo(n int) (int, func()) { return upTo(o, n) }
func (o once) overdraw(int) func()      { return func() {} }

// unenforced is a shadow or a Slowdown: it charges what the limiter admits, and admits all.
type unenforced struct {
	model
	hidesErrors bool
	loops       bool // an AllowUpTo asks it by AllowN
}

func (u unenforced) fits(int) bool { return true }
func (u unenforced) charge(n int) func() {
	if u.model.fits(n) {
		return u.model.charge(n)
	}
	return func() {}
}
func (u unenforced) upTo(n int) (int, func()) {
	if u.loops {
		return upTo(u, n)
	}
	_, undo := u.model.upTo(n)
	return n, undo
}
func (u unenforced) down() outcome {
	if o := u.model.down(); !u.hidesErrors && (o == fails || o == unknown) {
		return o
	}
	return admits
}

// refusing denies what the one inside admits, and so gives it back.
type refusing struct{ model }

func (refusing) fits(int) bool          { return false }
func (refusing) charge(int) func()      { return func() {} }
func (refusing) upTo(int) (int, func()) { return 0, func() {} }
func (refusing) overdraw(int) func()    { return func() {} }
func (s refusing) down() outcome {
	if o := s.model.down(); o == fails || o == unknown {
		return o
	}
	return denies
}

// listed is a key on a list.
type listed struct {
	model
	allowed bool
}

func (l listed) fits(int) bool            { return l.allowed }
func (l listed) charge(int) func()        { return func() {} }
func (l listed) upTo(n int) (int, func()) { return upTo(l, n) }
func (l listed) overdraw(int) func()      { return func() {} }
func (l listed) down() outcome {
	if l.allowed {
		return admits
	}
	return denies
}

// looped is a limiter without AllowUpTo, which is asked by AllowN.
type looped struct{ model }

func (l looped) upTo(n int) (int, func()) { return upTo(l, n) }

// inOutage is a model that answers otherwise while the store fails.
type inOutage struct {
	model
	answers outcome
}

func (o inOutage) upTo(n int) (int, func()) { return upTo(o, n) }

func (o inOutage) down() outcome {
	if inner := o.model.down(); inner != fails {
		return inner
	}
	return o.answers
}

// nesting is limiters around each other, and their model.
type nesting struct {
	ratelimit.Limiter
	model
	id        int
	algorithm string
	store     *unreliable
	front     store.Store // before store, or nil
	names     []string    // of the wrappers, the outermost first
	cores     []nested
	observer  ratelimit.Observer // of each of the five, or nil
}

// nested is one of the five inside a nesting, and the key that it is asked for.
type nested struct {
	limiter ratelimit.Limiter
	counter *counted
	key     string
}

// core is a limiter of the five that is new to the nesting.
func (x *nesting) core(t testing.TB, limit int, opts ...ratelimit.Option) nested {
	return nested{x.named(t, fmt.Sprint(len(x.cores)), limit, opts...), &counted{limit: limit}, "key"}
}

// another is a limiter of the same name as the one that core has just made.
func (x *nesting) another(t testing.TB, limit int, opts ...ratelimit.Option) ratelimit.Limiter {
	return x.named(t, fmt.Sprint(len(x.cores)), limit, opts...)
}

func (x *nesting) named(t testing.TB, name string, limit int, opts ...ratelimit.Option) ratelimit.Limiter {
	s := x.front
	if s == nil {
		s = x.store
	}
	opts = append(opts, ratelimit.WithName(fmt.Sprint(x.id, " ", name)), ratelimit.WithPolicyName(name))
	if x.observer != nil {
		opts = append(opts, ratelimit.WithObserver(x.observer))
	}
	return newLimiter(t, x.algorithm, s, ratelimit.PerDay(limit), opts...)
}

// nobody hears what it is told.
type nobody struct{}

func (nobody) Decided(context.Context, string, int, ratelimit.Result, error, time.Duration) {}

// wrapper puts something around a limiter. Its constructor may refuse it.
type wrapper struct {
	name string
	wrap func(t testing.TB, x *nesting) error
}

// plain is a wrapper that decides as the limiter inside.
func plain[L ratelimit.Limiter](name string, make func(ratelimit.Limiter) (L, error)) wrapper {
	return wrapper{name, func(_ testing.TB, x *nesting) error {
		l, err := make(x.Limiter)
		x.Limiter = l
		return err
	}}
}

// modelled is a wrapper of which the model says what it does.
func modelled(w wrapper, of func(model) model) wrapper {
	return wrapper{w.name, func(t testing.TB, x *nesting) error {
		err := w.wrap(t, x)
		x.model = of(x.model)
		return err
	}}
}

func prefixed(_ context.Context, key string) (string, error) { return "re:" + key, nil }

func ignored(context.Context, string, int, ratelimit.Result, error) {}

func listing(lists accesslist.Lists) func(ratelimit.Limiter) (*accesslist.Limiter, error) {
	return func(l ratelimit.Limiter) (*accesslist.Limiter, error) {
		return accesslist.New(l, accesslist.WithLists(lists))
	}
}

func inCase(p fallback.Answer) func(ratelimit.Limiter) (*fallback.Limiter, error) {
	return func(l ratelimit.Limiter) (*fallback.Limiter, error) {
		return fallback.New(l, p, fallback.WithBreaker(math.MaxInt32, time.Hour))
	}
}

func answering(o outcome) func(model) model {
	return func(m model) model { return inOutage{m, o} }
}

// wrappers are all of this module that stand in the way of a call.
func wrappers(t testing.TB) []wrapper {
	everybody, err := accesslist.NewList("=key", "=re:key", "=re:re:key", "=re:re:re:key")
	require.NoError(t, err)
	return []wrapper{
		{"another key", func(_ testing.TB, x *nesting) error {
			for i := range x.cores {
				x.cores[i].key = "re:" + x.cores[i].key
			}
			x.Limiter = testkit.OtherKey(x.Limiter, prefixed)
			return nil
		}},
		plain("observe.Around", func(l ratelimit.Limiter) (ratelimit.Limiter, error) { return observe.Around(l, nobody{}) }),
		plain("a wrapper of a user's", func(l ratelimit.Limiter) (*ratelimit.Around, error) {
			return ratelimit.NewAround(l, func(ctx context.Context, c ratelimit.Call) (ratelimit.Result, error) { return c.Inside(ctx) })
		}),
		modelled(plain("a wrapper that admits", func(l ratelimit.Limiter) (*ratelimit.Around, error) {
			return ratelimit.NewAround(l, func(ctx context.Context, c ratelimit.Call) (r ratelimit.Result, err error) {
				if _, err = c.Inside(ctx); err == nil {
					r.Allowed = true
				}
				return r, err
			})
		}), func(m model) model { return unenforced{m, false, false} }),
		modelled(plain("a wrapper that denies", func(l ratelimit.Limiter) (*ratelimit.Around, error) {
			return ratelimit.NewAround(l, func(ctx context.Context, c ratelimit.Call) (r ratelimit.Result, err error) {
				if c.Charge {
					return ratelimit.Result{RetryAfter: time.Hour}, nil
				}
				if r, err = c.Inside(ctx); err == nil {
					r.Allowed, r.RetryAfter, r.Delay = false, max(r.RetryAfter, time.Hour), 0
				}
				return r, err
			})
		}), func(m model) model { return refusing{m} }),
		modelled(plain("All of one", func(l ratelimit.Limiter) (*ratelimit.All, error) { return ratelimit.NewAll(l) }), func(m model) model { return looped{m} }),
		{"All, first", func(t testing.TB, x *nesting) (err error) {
			other := x.core(t, 7)
			x.Limiter, err = ratelimit.NewAll(x.Limiter, other.limiter)
			x.model, x.cores = both{x.model, other.counter}, append(x.cores, other)
			return err
		}},
		{"All, second", func(t testing.TB, x *nesting) (err error) {
			other := x.core(t, 12)
			x.Limiter, err = ratelimit.NewAll(other.limiter, x.Limiter)
			x.model, x.cores = both{other.counter, x.model}, append(x.cores, other)
			return err
		}},
		{"All with calls and a key", func(t testing.TB, x *nesting) (err error) {
			other := x.core(t, 5, ratelimit.CountCalls(), ratelimit.WithKeyFunc(prefixed))
			x.Limiter, err = ratelimit.NewAll(x.Limiter, other.limiter)
			x.model, x.cores = both{x.model, once{other.counter}}, append(x.cores, other)
			return err
		}},
		modelled(plain("First of one", func(l ratelimit.Limiter) (*ratelimit.First, error) { return ratelimit.NewFirst(l) }), func(m model) model {
			return either{m, refusing{m}}
		}),
		{"First, first", func(t testing.TB, x *nesting) (err error) {
			other := x.core(t, 7)
			x.Limiter, err = ratelimit.NewFirst(x.Limiter, other.limiter)
			x.model, x.cores = either{x.model, other.counter}, append(x.cores, other)
			return err
		}},
		{"First, second", func(t testing.TB, x *nesting) (err error) {
			other := x.core(t, 12)
			x.Limiter, err = ratelimit.NewFirst(other.limiter, x.Limiter)
			x.model, x.cores = either{other.counter, x.model}, append(x.cores, other)
			return err
		}},
		{"All, reserved", func(t testing.TB, x *nesting) (err error) {
			other := x.core(t, 12)
			x.Limiter, err = ratelimit.NewAll(x.Limiter, x.another(t, 12, ratelimit.WithReserved(4)))
			x.model, x.cores = both{x.model, leaving{other.counter, 4}}, append(x.cores, other)
			return err
		}},
		{"First, reserved", func(t testing.TB, x *nesting) (err error) {
			other := x.core(t, 9)
			x.Limiter, err = ratelimit.NewFirst(x.another(t, 9, ratelimit.WithReserved(3)), x.Limiter)
			x.model, x.cores = either{leaving{other.counter, 3}, x.model}, append(x.cores, other)
			return err
		}},
		modelled(plain("fallback open", inCase(fallback.FailOpen())), answering(admits)),
		modelled(plain("fallback closed", inCase(fallback.FailClosed())), answering(denies)),
		plain("accesslist", listing(accesslist.Lists{})),
		modelled(plain("accesslist, allowed", listing(accesslist.Lists{Allow: everybody})), func(m model) model { return listed{m, true} }),
		modelled(plain("accesslist, denied", listing(accesslist.Lists{Deny: everybody})), func(m model) model { return listed{m, false} }),
		plain("shadow, enforced", func(l ratelimit.Limiter) (*shadow.Limiter, error) {
			return shadow.New(l, ignored, shadow.WithEnforcement(100))
		}),
		modelled(plain("shadow", func(l ratelimit.Limiter) (*shadow.Limiter, error) {
			return shadow.New(l, ignored)
		}), func(m model) model { return unenforced{m, true, false} }),
		plain("Waiter", func(l ratelimit.Limiter) (*throttle.Waiter, error) { return throttle.NewWaiter(l, time.Microsecond) }),
		modelled(plain("Slowdown", func(l ratelimit.Limiter) (*throttle.Slowdown, error) {
			return throttle.NewSlowdown(l, throttle.Slow{Step: time.Microsecond, Max: time.Microsecond})
		}), func(m model) model { return unenforced{m, false, true} }),
	}
}

// refuses reports whether the constructor of outer refuses a limiter inside, which has these
// wrappers, from the outside in. The reasons are in the doc of package ratelimit.
func refuses(outer string, inside []string) bool {
	has := func(names ...string) bool {
		return slices.ContainsFunc(inside, func(name string) bool {
			return slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(name, n) })
		})
	}
	switch kind, _, _ := strings.Cut(outer, " "); kind {
	case "fallback": // they answer for the store, or sleep
		return has("accesslist", "shadow", "Waiter", "Slowdown")
	case "First", "First,": // it would go past what they say
		return has("accesslist", "shadow", "Waiter", "Slowdown")
	case "All", "All,", "Slowdown", "Waiter": // it would hold what others have taken while it sleeps, sleep to be let through, or sleep beyond its maximum
		return has("Waiter")
	}
	return false
}

// quick reports whether a plain run holds all pairs of wrappers around the algorithm on s: one that
// delays and one that does not, in memory.
func quick(algorithm string, s store.Store) bool {
	_, inMemory := s.(*memstore.Store)
	return inMemory && (algorithm == "leaky_bucket" || algorithm == "sliding_window")
}

// TestNestings holds each wrapper around each other, on both stores, to the model.
func TestNestings(t *testing.T) {
	t.Parallel()
	depth := 2
	if effort.Long() {
		depth = 3
	}
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, _ *clock) {
		depth := depth
		if !effort.Full() && !quick(algorithm, s) {
			depth = 1
		}
		all := wrappers(t)
		nestings, rng := 0, rand.New(rand.NewPCG(1, 2))
		var nest func(inside []wrapper)
		nest = func(inside []wrapper) {
			x, names := &nesting{id: nestings, algorithm: algorithm, store: &unreliable{Store: s}}, []string{}
			x.cores = []nested{x.core(t, 10)}
			x.Limiter, x.model = x.cores[0].limiter, x.cores[0].counter
			for i, w := range slices.Backward(inside) {
				err := w.wrap(t, x)
				if refuses(w.name, names) {
					require.ErrorIs(t, err, ratelimit.ErrInvalidOption, "%s around %s", w.name, names)
					require.Zero(t, i)
					return
				}
				names = append([]string{w.name}, names...)
				require.NoError(t, err, names)
			}
			x.names = names
			nestings++
			x.run(t, rng)
			for i := range all {
				if len(inside) < depth {
					nest(append([]wrapper{all[i]}, inside...))
				}
			}
		}
		nest(nil)
		t.Logf("%d nestings", nestings)
	})
}

// run has the limiter decide as the model does.
func (x *nesting) run(t *testing.T, rng *rand.Rand) {
	queues := x.algorithm == "leaky_bucket"
	if slices.Contains(x.names, "Waiter") && (queues || slices.Contains(x.names, "Slowdown")) {
		return // it admits what has its turn within a microsecond
	}
	type grant struct {
		r    ratelimit.Result
		n    int
		undo func()
	}
	var grants []grant
	ctx, said := t.Context(), []string{}
	say := func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }
	told := func() string { return fmt.Sprintf("%s of %q: %s", x.algorithm, x.names, strings.Join(said, ", ")) }
	admitted := func(r ratelimit.Result, n int, undo func()) {
		grants = append(grants, grant{r, n, undo})
	}
	for range 30 {
		n := 1 + rng.IntN(4)
		switch rng.IntN(12) {
		default:
			say("AllowN(%d)", n)
			r, err := x.AllowN(ctx, "key", n)
			require.NoError(t, err, told())
			require.Equal(t, x.fits(n), r.Allowed, told())
			x.check(t, r, told)
			if r.Allowed {
				admitted(r, n, x.charge(n))
			}
		case 0:
			say("AllowUpTo(%d)", n)
			granted, r, err := ratelimit.AllowUpTo(ctx, x.Limiter, "key", n)
			require.NoError(t, err, told())
			want, undo := x.upTo(n)
			require.Equal(t, want, granted, told())
			x.check(t, r, told)
			if granted > 0 {
				admitted(r, granted, undo)
			}
		case 1:
			say("Peek")
			r, err := x.Peek(ctx, "key")
			require.NoError(t, err, told())
			require.Equal(t, x.fits(1), r.Allowed, told())
			require.Zero(t, r.Charged(), told())
			x.check(t, r, told)
		case 2:
			if slices.ContainsFunc(x.names, func(name string) bool { return strings.HasPrefix(name, "First") }) {
				break // TestAFirstChargesWhereThereIsRoom has these
			}
			say("Charge(%d)", n)
			r, err := ratelimit.Charge(ctx, x.Limiter, "key", n)
			require.NoError(t, err, told())
			admitted(r, n, x.overdraw(n))
		case 3, 4, 5:
			if len(grants) == 0 {
				break
			}
			i := rng.IntN(len(grants))
			if queues { // it takes back its last turn only
				i = len(grants) - 1
			}
			say("Refund(%d)", grants[i].n)
			err := x.Refund(ctx, "key", grants[i].r, grants[i].n)
			if grants[i].r.Allowed {
				require.NoError(t, err, told())
			}
			grants[i].undo()
			grants = slices.Delete(grants, i, i+1)
		case 6:
			say("down AllowN(%d)", n)
			want := x.down()
			if want == unknown {
				break
			}
			x.store.Down.Store(true)
			r, err := x.AllowN(ctx, "key", n)
			x.store.Down.Store(false)
			got := denies
			if err != nil {
				require.ErrorIs(t, err, ratelimit.ErrStore, told())
				got = fails
			} else if x.check(t, r, told); r.Allowed {
				got = admits
			}
			require.Equal(t, want, got, told())
		case 7:
			if queues || slices.Contains(x.names, "Slowdown") { // what comes at once is another question
				break
			}
			say("AllowWithin(%d)", n)
			r, err := ratelimit.AllowWithin(ctx, x.Limiter, "key", n, 0)
			require.NoError(t, err, told())
			require.Equal(t, x.fits(n), r.Allowed, told())
			x.check(t, r, told)
			if r.Allowed {
				admitted(r, n, x.charge(n))
			}
		}
		x.same(t, told)
	}
	say("Reset")
	require.NoError(t, x.Reset(ctx, "key"), told())
	x.reset()
	x.same(t, told)
}

// check holds what is told to what always holds.
func (x *nesting) check(t *testing.T, r ratelimit.Result, told func() string) {
	require.True(t, 0 <= r.Remaining && r.Remaining <= r.Limit, "%s: %+v", told(), r)
	require.Equal(t, r.Allowed, r.RetryAfter == 0, "%s: %+v", told(), r)
	policies, err := ratelimit.AppendPolicies(t.Context(), nil, x.Limiter, "key")
	require.NoError(t, err, told())
	if parts := r.Parts(); parts != nil {
		require.LessOrEqual(t, len(parts), len(policies), told())
		for i, part := range parts {
			if part.Result != (ratelimit.Result{}) && part.Counted() {
				own, err := ratelimit.AppendPolicies(t.Context(), nil, part.Limiter, "key")
				require.NoError(t, err, told())
				require.Equal(t, own[0].Quota, part.Limit, "%s: part %d", told(), i)
				if part.Source() != ratelimit.SourceList { // which has a policy of its own
					require.Equal(t, own[0].Name, part.Name(), "%s: part %d", told(), i)
				}
			}
		}
		if by := r.DeniedBy(); by != "" {
			i := slices.IndexFunc(parts, func(p ratelimit.Part) bool {
				return !p.Allowed && (p.Name() == by || p.Source() == ratelimit.SourceList)
			})
			require.NotEqual(t, -1, i, told())
		}
	} else if r.Counted() {
		require.Len(t, policies, 1, told())
	}
}

// same holds what each of the five has counted to the model.
func (x *nesting) same(t *testing.T, told func() string) {
	for _, c := range x.cores {
		r, err := c.limiter.Peek(t.Context(), c.key)
		require.NoError(t, err, told())
		require.Equal(t, max(0, c.counter.limit-c.counter.used), r.Remaining, "%s: of %d", told(), c.counter.limit)
	}
}

// TestNestingsKeepToOneLimitAcrossOutages has a local fallback inside of nestings, and others
// inside of it. The store comes and goes. It forgets nothing, so that each of the five admits
// its limit once.
func TestNestingsKeepToOneLimitAcrossOutages(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	all := wrappers(t)
	inner := []string{"All of one", "All, first", "All, second", "All, reserved"}
	outer := []string{"another key", "All of one", "All, first", "All, second", "First of one", "First, first", "First, second", "All with calls and a key", "accesslist", "shadow, enforced"}
	rng := rand.New(rand.NewPCG(3, 4))
	for id := range effort.Of(600, 2_000, 20_000) {
		algorithm := algorithms[id%len(algorithms)]
		x := &nesting{id: id, algorithm: algorithm, store: &unreliable{Store: memory(t, newClock())}}
		if id%2 == 1 {
			x.front = newDenyCache(t, x.store)
		}
		x.cores = []nested{x.core(t, 10)}
		x.Limiter, x.model = x.cores[0].limiter, x.cores[0].counter
		wrap := func(names []string) {
			for range rng.IntN(3) {
				name := names[rng.IntN(len(names))]
				w := all[slices.IndexFunc(all, func(w wrapper) bool { return w.name == name })]
				if !refuses(name, x.names) {
					require.NoError(t, w.wrap(t, x))
					x.names = append([]string{name}, x.names...)
				}
			}
		}
		wrap(inner)
		f, err := fallback.New(x.Limiter, fallback.FailLocal(1), fallback.WithBreaker(math.MaxInt32, time.Hour))
		require.NoError(t, err)
		x.Limiter, x.names = f, append([]string{"fallback local"}, x.names...)
		wrap(outer)
		x.comeAndGo(t, rng)
	}
}

// comeAndGo has the limiter decide while its store comes and goes.
func (x *nesting) comeAndGo(t *testing.T, rng *rand.Rand) {
	ctx, said := t.Context(), []string{}
	var admitted []ratelimit.Result
	var undo []func()
	for range 40 {
		switch last := len(admitted) - 1; rng.IntN(8) {
		case 0:
			x.store.Down.Store(!x.store.Down.Load())
			said = append(said, fmt.Sprint("down: ", x.store.Down.Load()))
		case 1:
			_, _ = x.Peek(ctx, "key") // an error, where no fallback is around the limit
			said = append(said, "Peek")
		case 2:
			if last < 0 {
				break
			}
			if err := x.Refund(ctx, "key", admitted[last], 4); err == nil {
				undo[last]()
				said = append(said, "Refund")
			}
			admitted, undo = admitted[:last], undo[:last]
		default:
			n := 1 + rng.IntN(4)
			if r, err := x.AllowN(ctx, "key", n); err == nil && r.Allowed {
				admitted, undo = append(admitted, r), append(undo, x.chargedBy(r, n))
				said = append(said, fmt.Sprintf("AllowN(%d): %v", n, r))
			}
		}
		for _, c := range x.cores {
			require.LessOrEqual(t, c.counter.used, c.counter.limit, "%s of %q: %v", x.algorithm, x.names, said)
		}
	}
	x.store.Down.Store(false)
	_, err := x.Peek(ctx, "key") // what is owed is handed back
	require.NoError(t, err)
	for _, c := range x.cores {
		r, err := c.limiter.Peek(ctx, c.key)
		require.NoError(t, err)
		require.LessOrEqual(t, r.Remaining, c.counter.limit-c.counter.used, "%s of %q: %v", x.algorithm, x.names, said)
	}
}

// chargedBy charges the model for n events that r admits. Which limiter of a First that is, says r.
func (x *nesting) chargedBy(r ratelimit.Result, n int) (undo func()) {
	if !slices.ContainsFunc(x.names, func(name string) bool { return strings.HasPrefix(name, "First") }) {
		return x.charge(n)
	}
	var undos []func()
	for _, p := range r.Parts() {
		if i, err := strconv.Atoi(p.Name()); err == nil && p.Charged() > 0 {
			undos = append(undos, x.cores[i].counter.charge(p.Charged()))
		}
	}
	return func() {
		for _, undo := range undos {
			undo()
		}
	}
}

// An observed limiter is decided on as the plain one is, in each wrapper.
func TestObservedLimitersDecideAsPlainOnes(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, c *clock) {
		if !effort.Full() && !quick(algorithm, s) {
			t.Skip("in memory is enough, and one that delays and one that does not")
		}
		all, id := wrappers(t), 1_000_000
		for _, outer := range all {
			for _, inner := range all {
				plain := &nesting{id: id, algorithm: algorithm, store: &unreliable{Store: s}}
				watched := &nesting{id: id + 1, algorithm: algorithm, store: &unreliable{Store: s}, observer: nobody{}}
				id += 2
				var errs [2]error
				for i, x := range []*nesting{plain, watched} {
					x.cores = []nested{x.core(t, 10)}
					x.Limiter, x.model = x.cores[0].limiter, x.cores[0].counter
					if errs[i] = inner.wrap(t, x); errs[i] == nil {
						errs[i] = outer.wrap(t, x)
					}
				}
				require.Equal(t, errs[0] == nil, errs[1] == nil, "%s around %s: %v, %v", outer.name, inner.name, errs[0], errs[1])
				if errs[0] == nil {
					requireSameDecisions(t, plain, watched, c, requireSameParts, outer.name+" around "+inner.name)
				}
			}
		}
	})
}

// An All of one limiter says what that says, whatever is in it.
func TestAnAllOfOneLimiterSaysWhatThatSays(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	onEachStore(t, func(t *testing.T, algorithm string, s store.Store, c *clock) {
		if !effort.Full() && !quick(algorithm, s) {
			t.Skip("in memory is enough, and one that delays and one that does not")
		}
		id := 2_000_000
		for name, limit := range map[string]ratelimit.Limit{"a limit": {}, "Unlimited": ratelimit.Unlimited(), "a Rate of 0": {Period: time.Hour}} {
			nest := func(wraps ...wrapper) (x *nesting, err error) {
				x = &nesting{id: id, algorithm: algorithm, store: &unreliable{Store: s}}
				id++
				x.cores = []nested{x.core(t, 10, ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return limit, nil }))}
				x.Limiter, x.model = x.cores[0].limiter, x.cores[0].counter
				for i := 0; i < len(wraps) && err == nil; i++ {
					err = wraps[i].wrap(t, x)
				}
				return x, err
			}
			for _, outer := range wrappers(t) {
				for _, inner := range wrappers(t) {
					alone, err := nest(inner, outer)
					if err != nil {
						continue
					}
					inAll, _ := nest(inner, outer)
					if inAll.Limiter, err = ratelimit.NewAll(inAll.Limiter); err != nil { // it sleeps
						continue
					}
					requireSameDecisions(t, alone, inAll, c, requireSameWhole, "an All of "+outer.name+" around "+inner.name+" around "+name)
				}
			}
		}
	})
}

func requireSameDecisions(t *testing.T, plain, watched *nesting, c *clock, same func(t *testing.T, r, other ratelimit.Result, name string), name string) {
	t.Helper()
	ctx, rng := t.Context(), rand.New(rand.NewPCG(5, 6))
	var admitted [2]ratelimit.Result
	for i := range 12 {
		n, what := 1+rng.IntN(4), rng.IntN(6)
		var results [2]ratelimit.Result
		var errs [2]error
		for j, x := range []*nesting{plain, watched} {
			x.store.Down.Store(i == 7)
			switch what {
			case 0:
				_, results[j], errs[j] = ratelimit.AllowUpTo(ctx, x.Limiter, "key", n)
			case 1:
				results[j], errs[j] = ratelimit.Charge(ctx, x.Limiter, "key", n)
			case 2:
				results[j], errs[j] = x.Peek(ctx, "key")
			case 3:
				results[j], errs[j] = ratelimit.AllowWithin(ctx, x.Limiter, "key", n, time.Minute)
			case 4:
				errs[j] = x.Refund(ctx, "key", admitted[j], 1)
			default:
				results[j], errs[j] = x.AllowN(ctx, "key", n)
			}
		}
		if results[0].Charged() > 0 {
			admitted = results
		}
		require.Equal(t, errs[0] == nil, errs[1] == nil, "%s, call %d: %v, %v", name, i, errs[0], errs[1])
		same(t, results[0], results[1], name)
		c.Advance(time.Minute)
	}
}

// requireSameParts is requireSame, of the limits as well.
func requireSameParts(t *testing.T, r, other ratelimit.Result, name string) {
	t.Helper()
	requireSame(t, r, other, name)
	parts, others := r.Parts(), other.Parts()
	require.Len(t, others, len(parts), name)
	for k := range parts {
		requireSame(t, parts[k].Result, others[k].Result, name)
	}
}

// requireSame leaves out what is measured on the wall clock.
func requireSame(t *testing.T, r, other ratelimit.Result, name string) {
	t.Helper()
	if r.Source() == ratelimit.SourceDenyCache || r.Source() == ratelimit.SourceFailClosed {
		r.RetryAfter, r.ResetAfter, other.RetryAfter, other.ResetAfter = 0, 0, 0, 0
	}
	require.Equal(t, r.String(), other.String(), name)
	require.Equal(t, r.Charged(), other.Charged(), name)
	require.Equal(t, r.ResetAfter, other.ResetAfter, name)
	requireSameWhole(t, r, other, name)
}

// requireSameWhole leaves out which limit has denied, and when one that nobody counts is reset.
func requireSameWhole(t *testing.T, r, other ratelimit.Result, name string) {
	t.Helper()
	if !r.Counted() {
		r.ResetAfter, other.ResetAfter = 0, 0
	}
	if r.Source() == ratelimit.SourceFailClosed {
		r.RetryAfter, other.RetryAfter = 0, 0
	}
	require.Equal(t, []int{r.Limit, r.Remaining}, []int{other.Limit, other.Remaining}, "%s: Limit and Remaining of %v", name, r)
	require.Equal(t, []time.Duration{r.RetryAfter, r.ResetAfter, r.Delay}, []time.Duration{other.RetryAfter, other.ResetAfter, other.Delay}, name)
	require.Equal(t, []bool{r.Allowed, r.Counted()}, []bool{other.Allowed, other.Counted()}, name)
	require.Equal(t, r.Source(), other.Source(), name)
}
