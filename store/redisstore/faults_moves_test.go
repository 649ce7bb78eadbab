package redisstore_test

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// choices makes each list of choices in turn, as long as what is chosen from depends on the choices before alone.
type choices struct{ made, of []int }

// choose returns a number from 0 to n-1, the i-th choice of the list.
func (c *choices) choose(i, n int) int {
	if i == len(c.made) {
		c.made, c.of = append(c.made, 0), append(c.of, n)
	}
	return c.made[i]
}

// next makes the next list, and reports whether there is one.
func (c *choices) next() bool {
	for n := len(c.made) - 1; n >= 0; n-- {
		c.made, c.of = c.made[:n+1], c.of[:n+1]
		if c.made[n]++; c.made[n] < c.of[n] {
			return true
		}
	}
	return false
}

// moveOrders are the calls of a schedule, in the order in which they begin.
var moveOrders = [][]string{
	{"all"}, {"give"}, {"first"}, {"one"}, {"all", "give"}, {"one", "first"}, {"all", "one", "give"}, {"give", "all", "one"}, {"one", "give", "all"}, {"first", "all", "give"}, {"give", "first", "one"}, {"all", "give", "first"},
}

// playMove has some calls ask a cluster of two masters for the limits of a key, at once or one after the other, while its slot
// moves. Before each script that is run, any number of the steps of that move are done. In a full run, if one call is alone, all
// connections break after one of its scripts, or none.
func playMove(t *testing.T, c *choices) *story {
	n := 0
	choose := func(of int) int {
		n++
		return c.choose(n-1, of)
	}
	st := &story{
		t: t, told: make([]told, 7), jitter: rand.New(rand.NewPCG(1, 1)),
		plan: plan{masters: 2, way: 100 * time.Microsecond, cost: 20 * time.Microsecond, timeout: 2 * time.Millisecond, size: 2, ready: true, keeps: true},
	}
	st.troubles = []trouble{{what: "move", lasts: time.Second}}
	client, s, _ := st.openCluster(redisstore.WithTimeout(st.timeout), redisstore.WithJitter(func(most time.Duration) time.Duration { return most / 2 }))
	require.NoError(t, s.Ready(t.Context()))
	st.call(s, 0, planned{op: "all", n: 1})
	require.NoError(t, st.told[0].err)

	cluster := st.limits.cluster
	cluster.mu.Lock()
	slot := redisstore.SlotOf("{=key0}")
	from := cluster.masters[0].master(slot)
	to := 0
	if from == cluster.masters[0] {
		to = 1
	}
	steps := cluster.move(slot, to, append(from.keysIn(slot), "rl:2:fixed_window:283824000000000:=d:{=key0}"))
	do := func(n int) {
		for range n {
			steps[0]()
			steps = steps[1:]
		}
	}
	order := moveOrders[choose(effort.Of(2, 4, len(moveOrders)))]
	broken, alone := false, len(order) == 1
	breaks := alone && effort.Full()
	apart := !alone && choose(2) == 1
	cluster.before = func() {
		if len(steps) > 0 {
			do(choose(1 + len(steps)))
		}
		if breaks && !broken && choose(2) == 1 {
			broken = true
			cluster.in(st.way/2, func() {
				for _, b := range cluster.masters {
					b.cut(false, func(*wire) bool { return true })
				}
			})
		}
	}
	cluster.mu.Unlock()
	var calls sync.WaitGroup
	for i, op := range order {
		calls.Go(func() { st.call(s, 1+i, planned{op: op, n: 1}) })
		time.Sleep(time.Microsecond)
		if apart {
			calls.Wait()
		}
	}
	calls.Wait()
	for i, op := range order {
		err := st.told[1+i].err
		st.wrong(err != nil && !broken, "%s is not answered: %v", op, err)
		if op == "give" {
			st.told[0].op, st.told[0].refund = "refund", err
		}
	}
	cluster.mu.Lock()
	cluster.before = func() {}
	do(len(steps))
	cluster.mu.Unlock()
	time.Sleep(3 * time.Second)
	for i, op := range []string{"one", "all", "first"} {
		st.call(s, 4+i, planned{op: op, n: 1})
		st.wrong(st.told[4+i].err != nil, "%s: %v, though the slot has moved", op, st.told[4+i].err)
	}
	time.Sleep(time.Second) // until go-redis has the slots
	require.NoError(t, client.Close())
	synctest.Wait()
	return st
}

// A slot moves while calls ask for limits of its key: one, an All of two, a First, and the refund of an All. Each step of the
// move comes before each of their scripts, in every way: the target and the source open the slot, each key moves, the target
// has the slot, and the source knows. Nothing is charged, or given back, twice, and no count is lost. Every call is
// answered, unless a connection breaks.
func TestASlotMovesAtEachPointOfItsCalls(t *testing.T) {
	t.Parallel()
	if !alone(t) {
		return
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var c choices
	n := 0
	for more := true; more; {
		synctest.Test(t, func(t *testing.T) {
			for i := 0; i < 100 && more; i++ {
				st := playMove(t, &c)
				st.judge()
				for _, what := range st.strange {
					t.Errorf("%v: %s", c.made, what)
				}
				n++
				more = c.next() && !t.Failed() && (n < 200 || !testing.Short())
			}
		})
		runtime.GC()
		runtime.GC()
	}
	t.Logf("%d schedules", n)
}

// A crowd asks a distant cluster for limits whose slot is moving. Its calls share round trips to the server that has the keys, as
// all others do, and none of them waits for a connection until its time is up.
func TestADistantCrowdIsServedWhileItsSlotMoves(t *testing.T) {
	t.Parallel()
	if !alone(t) {
		return
	}
	for limits, addrs := range [][]string{
		{"10.0.0.1:6379", "10.0.0.2:6379"},
		{"[fd00::1]:6379", "[fd00::2]:6379", "fd00::1:6379", "fd00::2:6379"}, // and what the nodes call them
		{"10.0.0.1:6379", "10.0.0.1:6380", ":6379", ":6380"},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newNodes(2)
			clear(c.all)
			for i, b := range c.masters {
				b.way, b.cost, b.addr = 10*time.Millisecond, 20*time.Microsecond, addrs[i]
				c.all[b.addr] = b
			}
			c.says = func(addr string) string { return addrs[len(addrs)-2+slices.Index(addrs, addr)] }
			client, s := c.open(t, &redis.ClusterOptions{PoolSize: 16, ContextTimeoutEnabled: true})
			require.NoError(t, s.Ready(t.Context()))
			c.mu.Lock()
			slot := redisstore.SlotOf("{=k}")
			c.move(slot, 1-slices.Index(c.masters, c.masters[0].master(slot)), nil)[0]()
			c.mu.Unlock()
			window := ratelimit.Limit{Rate: 1000, Period: periodOf(0)}
			var l ratelimit.Limiter = ratelimit.Must(ratelimit.NewFixedWindow(s, window, ratelimit.WithName("a")))
			if limits > 0 {
				l = ratelimit.Must(ratelimit.NewAll(l, ratelimit.Must(ratelimit.NewFixedWindow(s, window, ratelimit.WithName("b")))))
			}
			var calls sync.WaitGroup
			for range 256 {
				calls.Go(func() {
					r, err := l.Allow(t.Context(), "k")
					assert.NoError(t, err)
					assert.True(t, r.Allowed)
				})
			}
			calls.Wait()
			time.Sleep(time.Second) // until go-redis has the slots
			require.NoError(t, client.Close())
			synctest.Wait()
		})
		runtime.GC()
		runtime.GC()
	}
}
