package memstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/dispatch"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

var algorithms = ratelimit.PerSecond(1).Algorithms()

const (
	siegeLimit = 100 // events a day: a bucket refills none in the minute of an attack
	oldUsed    = 10  // by an established user before the attack, more than by a rotating key
	oldAsks    = 20  // by an established user during it, about: with oldUsed well below the limit
	newAsks    = 3   // by a new user
)

// TestAttackByRotatingKeysGainsNothing floods a full store with keys that are used once, ten times
// as many as it holds. Meanwhile, the attacker tries one real key, earlier users continue, and new
// users arrive. With 10,000,000 keys for each algorithm it takes a minute:
//
//	RATELIMIT_LONG=1 go test -run Attack -v ./store/memstore
//
// A key of the flood that has spent as much as a user's key is kept as long as the user's. The test
// therefore holds for keys that soon spend more than each key of the flood. The attacker's real key
// is one of them.
func TestAttackByRotatingKeysGainsNothing(t *testing.T) {
	effort.OneGoroutine(t)
	for _, flood := range []struct{ maxKeys, rotating, cost int }{
		{100_000 / scale, 1_000_000 / scale, 1},
		{10_000 / scale, 100_000 / scale, 2},
		{10_000 / scale, 100_000 / scale, 5},
	} {
		for _, algorithm := range algorithms {
			less := max(1, effort.Of(10, 4, 1)/scale)
			maxKeys, rotating := flood.maxKeys/less, flood.rotating/less
			if effort.Long() {
				rotating *= 10
			}
			t.Run(fmt.Sprintf("%s/%d a key", algorithm, flood.cost), func(t *testing.T) {
				attack(t, algorithm, maxKeys, rotating, flood.cost)
			})
		}
	}
}

func attack(t *testing.T, algorithm string, maxKeys, rotating, cost int) {
	c := newClock()
	s := newStore(t, memstore.WithMaxKeys(maxKeys), memstore.WithClock(c.now))
	g := newSiege(t, s, c, algorithm, maxKeys, rotating, cost)
	most := 0
	g.watch = func() { most = max(most, s.Len()) }

	empty := heap()
	g.fill()
	atCap, full := int64(heap()-empty), s.Len()
	perDecision := g.flood()
	grown := int64(heap() - empty)

	if full != maxKeys || s.Evicted() < uint64(rotating) || g.rotated.percent() != 100 {
		t.Fatalf("%d of %d keys before the flood, %d evicted by it, %.2f %% of it admitted: it was none",
			full, maxKeys, s.Evicted(), g.rotated.percent())
	}
	t.Logf("heap %.2f MB (at the cap %.2f), keys %d (cap %d), attacker %.2f L, established %.2f %%, new %.2f %%, %d ns a decision",
		float64(grown)/1e6, float64(atCap)/1e6, most, maxKeys, g.attackerShare(),
		g.established.percent(), g.newcomers.percent(), perDecision.Nanoseconds())
	may := atCap + atCap/10 + 16<<10 // what the runtime keeps for itself
	if algorithm == "sliding_log" {  // users of several events have a log each
		may += 300 * int64(len(g.users))
	}
	if grown > may || most > maxKeys {
		t.Errorf("%d bytes and %d keys, at the cap %d and %d", grown, most, atCap, maxKeys)
	}
	if g.attackerShare() > 1.05 {
		t.Errorf("the attacker was admitted %.2f times his limit", g.attackerShare())
	}
	if g.established.percent() < 99 || g.newcomers.percent() < 95 {
		t.Errorf("admitted: %.2f %% of established users, %.2f %% of new ones", g.established.percent(), g.newcomers.percent())
	}
	if n := g.forgotten(); n > 0 {
		t.Errorf("%d established users may spend more than their limit", n)
	}
	check(t, s)
}

// TestAttackSucceedsWhereVictimsGoByAge shows that the flood is effective: it runs the same attack
// on stores that evict keys regardless of their spend.
func TestAttackSucceedsWhereVictimsGoByAge(t *testing.T) {
	const maxKeys, rotating = 1000, 20_000
	rng := rand.New(rand.NewPCG(5, 6))
	for name, victim := range map[string]func(n int) int{
		"oldest": func(n int) int { return n % maxKeys },
		"random": func(int) int { return rng.IntN(maxKeys) },
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			g := newSiege(t, &naiveStore{clock: c, victim: victim}, c, "fixed_window", maxKeys, rotating, 1)
			g.fill()
			g.flood()
			t.Logf("attacker %.2f L, %d of %d established users forgotten", g.attackerShare(), g.forgotten(), len(g.users))
			if g.attackerShare() <= 1.05 || g.forgotten() == 0 {
				t.Error("the flood does no harm here, so the test above shows nothing")
			}
		})
	}
}

// siege is one attack on one limiter, and its results.
type siege struct {
	t       *testing.T
	lim     ratelimit.Limiter
	clock   *clock
	watch   func() // called after each round
	maxKeys int

	rotating, cost int // keys of the flood, and the events that each spends
	rounds         int

	users []string // established
	spent []int    // by each of them

	rotated, attacker, established, newcomers tally
}

type tally struct{ asked, admitted int }

func (n tally) percent() float64 { return 100 * float64(n.admitted) / float64(n.asked) }

func newSiege(t *testing.T, s store.Store, c *clock, algorithm string, maxKeys, rotating, cost int) *siege {
	t.Helper()
	lim, err := ratelimit.New(algorithm, s, ratelimit.PerDay(siegeLimit))
	if err != nil {
		t.Fatal(err)
	}
	users := keyNames(maxKeys / 20)
	return &siege{t: t, lim: lim, clock: c, watch: func() {}, maxKeys: maxKeys, rotating: rotating, cost: cost,
		users: users, spent: make([]int, len(users))}
}

// fill fills the store exactly to its maximum, with the established users and with the first keys
// of the attack.
func (g *siege) fill() {
	for u := range g.users {
		for range oldUsed {
			g.visit(u)
		}
	}
	for range g.maxKeys - len(g.users) {
		g.round()
	}
}

// flood rotates the keys, and returns how long a decision took.
func (g *siege) flood() time.Duration {
	before, start := g.decisions(), time.Now()
	for range g.rotating {
		g.round()
	}
	return time.Since(start) / time.Duration(g.decisions()-before)
}

// round uses one rotating key, and sometimes a user's key.
func (g *siege) round() {
	i := g.rounds
	g.rounds++
	g.ask(&g.rotated, "x"+strconv.Itoa(i), g.cost)
	if i%8 == 0 {
		g.ask(&g.attacker, "the attacker's own", 1)
	}
	if every := g.rotating / (oldAsks * len(g.users)); i%every == 0 {
		g.visit(i / every % len(g.users))
	}
	if every := g.rotating / (newAsks * len(g.users)); i%every == 0 {
		g.ask(&g.newcomers, "new"+strconv.Itoa(i/every/newAsks), 1)
	}
	g.watch()
}

// visit makes an established user ask for an event.
func (g *siege) visit(u int) {
	if g.ask(&g.established, g.users[u], 1) {
		g.spent[u]++
	}
}

func (g *siege) ask(who *tally, key string, n int) bool {
	r, err := g.lim.AllowN(ctx, key, n)
	if err != nil {
		g.t.Fatal(err)
	}
	g.clock.add(3)
	who.asked++
	if r.Allowed {
		who.admitted++
	}
	return r.Allowed
}

func (g *siege) decisions() int {
	return g.rotated.asked + g.attacker.asked + g.established.asked + g.newcomers.asked
}

// attackerShare returns how much the attacker's own key was admitted, as a multiple of the limit.
func (g *siege) attackerShare() float64 { return float64(g.attacker.admitted) / siegeLimit }

// forgotten returns how many of the established users have more than their limit, including what
// they may still spend.
func (g *siege) forgotten() (n int) {
	for u, key := range g.users {
		if r, err := g.lim.Peek(ctx, key); err != nil || g.spent[u]+r.Remaining > siegeLimit {
			n++
		}
	}
	return n
}

// naiveStore is a map of limited size for rules without logs. When it is full, victim chooses the
// key that the nth key replaces.
type naiveStore struct {
	store.Store // nil: there is no Refund and no Reset
	clock       *clock
	victim      func(n int) int
	states      map[string]store.State
	keys        []string
	born        int
}

func (s *naiveStore) Prepare(*store.Rule, store.Limit, bool) error { return nil }

// Decide implements [store.Store].
func (s *naiveStore) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	return dispatch.Decide(ctx, s, s.Store, requests, replies)
}

func (s *naiveStore) Take(_ context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	state, known := s.states[key]
	next, r := ns.Rule.Step(state, l, s.clock.µs.Load(), n)
	if !r.OK() {
		return r, nil
	}
	if !known {
		s.admit(key)
	}
	s.states[key] = next
	return r, nil
}

func (s *naiveStore) Peek(_ context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	_, r := ns.Rule.Step(s.states[key], l, s.clock.µs.Load(), n)
	return r, nil
}

func (s *naiveStore) admit(key string) {
	const maxKeys = 1000
	if s.states == nil {
		s.states = map[string]store.State{}
	}
	if len(s.keys) < maxKeys {
		s.keys = append(s.keys, key)
	} else {
		i := s.victim(s.born)
		delete(s.states, s.keys[i])
		s.keys[i] = key
	}
	s.born++
}
