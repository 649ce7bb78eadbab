package redisstore_test

import (
	"context"
	"errors"
	"io"
	mathrand "math/rand"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

var (
	clusterTroubles = []string{
		"move", "move", "move", "move", "die", "die", "stop", "stop", "cut", "cut", "slow way", "slow server", "half-open", "dark", "gone", "answer", "flush",
	}
	clusterOps = []string{"one", "all", "first", "apart", "refund", "peek"}
)

// clusterKeys is how many keys the callers of a cluster share.
const clusterKeys = 3

// newClusterPlan is newPlan of a cluster, on which many callers share the limits of a few keys.
func newClusterPlan(seed uint64) plan {
	r := rand.New(rand.NewPCG(seed, 1<<32))
	p := plan{
		seed: seed, masters: 3, tags: []int{0, 0, 4, 64}[r.IntN(4)],
		cost:    20 * time.Microsecond,
		timeout: []time.Duration{50, 100, 250, 500}[r.IntN(4)] * time.Millisecond,
		size:    []int{1, 4, 16}[r.IntN(3)], keeps: r.IntN(2) == 0, ready: r.IntN(4) > 0,
		rests: time.Duration(r.IntN(2)) * 3 * time.Second, ends: time.Second,
	}
	p.way = 20*time.Microsecond + time.Duration(r.Int64N(int64(time.Millisecond)))
	for range 1 + r.IntN(3) {
		p.troubles = append(p.troubles, trouble{
			clusterTroubles[r.IntN(len(clusterTroubles))], time.Duration(r.Int64N(int64(p.ends))),
			time.Millisecond + time.Duration(r.Int64N(int64(3*p.timeout))), r.IntN(100),
		})
	}
	p.waves(r, func(at time.Duration) {
		c := planned{at: at, op: clusterOps[max(0, r.IntN(len(clusterOps)+3)-3)], n: 1, key: r.IntN(clusterKeys)}
		switch r.IntN(6) {
		case 0:
			c.left = time.Duration(r.Int64N(int64(p.timeout / 2)))
		case 1:
			c.left, c.cancels = time.Duration(r.Int64N(int64(2*p.timeout))), r.IntN(3) == 0
		}
		p.calls = append(p.calls, c)
	})
	return p
}

// clusterProbes are twice one of each operation on each key.
func clusterProbes() (list []planned) {
	for range 2 {
		for _, op := range clusterOps {
			for key := range clusterKeys {
				list = append(list, planned{op: op, n: 1, key: key})
			}
		}
	}
	return list
}

// openCluster makes st's cluster, a client of it, and a store on that, and the limits.
func (st *story) openCluster(opts ...redisstore.Option) (io.Closer, *redisstore.Store, func(trouble, *rand.Rand)) {
	mathrand.Seed(int64(st.seed)) //nolint:staticcheck // by it go-redis chooses whom it asks for the slots
	c := newNodes(st.masters)
	st.b = c.bubble
	for _, b := range c.masters {
		b.way, b.cost = st.way, st.cost
	}
	if st.tags > 0 {
		opts = append(opts, redisstore.WithHashTags(st.tags))
	}
	client, s := c.open(st.t, &redis.ClusterOptions{PoolSize: st.size, ContextTimeoutEnabled: st.keeps}, opts...)
	st.limits = newLimits(st.t, s, c)
	return client, s, c.suffer
}

// open returns a client of c, and a store on it.
func (c *nodes) open(t *testing.T, o *redis.ClusterOptions, opts ...redisstore.Option) (*redis.ClusterClient, *redisstore.Store) {
	for _, b := range c.masters {
		o.Addrs = append(o.Addrs, b.addr)
	}
	o.Dialer, o.DialTimeout, o.DialerRetries = c.dial, time.Second, 2
	o.Protocol, o.DisableIdentity, o.ReadBufferSize, o.WriteBufferSize = 2, true, 4096, 4096
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	client := redis.NewClusterClient(o)
	s, err := redisstore.New(client, opts...)
	require.NoError(t, err)
	return client, s
}

// limits are limits that many share on a cluster, and what is made of them.
type limits struct {
	cluster *nodes
	timeout time.Duration
	charged ratelimit.Result             // of the first call
	rates   map[string]int64             // by name
	limiter map[string]ratelimit.Limiter // by operation
}

// caller is the key of the number of who calls, in a context.
type caller struct{}

// periodOf is the period of the limits of caller i. It tells who calls, and is so long that the window never ends.
func periodOf(i int) time.Duration { return 9*365*24*time.Hour + time.Duration(i)*time.Microsecond }

func newLimits(t *testing.T, s *redisstore.Store, c *nodes) *limits {
	l := &limits{cluster: c, timeout: s.Timeout(), rates: map[string]int64{"a": 30, "b": 20, "c": 40, "d": 8}}
	limit := func(name string, opts ...ratelimit.Option) ratelimit.Limiter {
		rate := int(l.rates[name])
		w, err := ratelimit.NewFixedWindow(s, ratelimit.Limit{Rate: rate, Period: periodOf(0)}, append(opts, ratelimit.WithName(name),
			ratelimit.WithLimitFunc(func(ctx context.Context, _ string) (ratelimit.Limit, error) {
				return ratelimit.Limit{Rate: rate, Period: periodOf(ctx.Value(caller{}).(int))}, nil
			}))...)
		require.NoError(t, err)
		return w
	}
	a, b, d := limit("a"), limit("b"), limit("d")
	everybody := limit("c", ratelimit.WithKeyFunc(func(context.Context, string) (string, error) { return "everybody", nil }))
	all, err := ratelimit.NewAll(a, b)
	require.NoError(t, err)
	apart, err := ratelimit.NewAll(a, everybody) // two servers, if their keys are on two
	require.NoError(t, err)
	first, err := ratelimit.NewFirst(d, b)
	require.NoError(t, err)
	l.limiter = map[string]ratelimit.Limiter{"one": a, "refund": a, "peek": a, "all": all, "give": all, "apart": apart, "first": first}
	return l
}

// shared is what a caller of limits that others share was told.
type shared struct {
	allowed bool
	refund  error         // of what was charged, by an operation that gives it back
	more    time.Duration // that the call may take, since it asks two servers in turn, and gives back
}

// ask has caller i ask.
func (l *limits) ask(ctx context.Context, i int, to *told) {
	ctx = context.WithValue(ctx, caller{}, i)
	key, limiter := "key"+strconv.Itoa(to.key), l.limiter[to.op]
	var r ratelimit.Result
	switch to.op {
	case "peek":
		r, to.err = limiter.Peek(ctx, key)
	case "give": // of what the first call was charged, whose caller is long gone
		to.err = limiter.Refund(context.WithValue(ctx, caller{}, 0), key, l.charged, 1)
	default:
		r, to.err = limiter.Allow(ctx, key)
	}
	if i == 0 {
		l.charged = r
	}
	switch to.allowed = r.Allowed; to.op {
	case "apart":
		to.more = 2 * l.timeout
	case "refund", "give":
		to.more = l.timeout
	}
	if to.op == "refund" && r.Allowed {
		to.refund = limiter.Refund(ctx, key, r, 1)
	}
}

// judgeAsked judges what call i was charged, on a cluster.
func (st *story) judgeAsked(i int, to *told, class string) {
	charged, apart := 0, to.op == "apart" // charged and not given back
	of := " " + strconv.FormatInt(periodOf(i).Microseconds(), 10)
	for name, p := range st.b.pages {
		if !strings.HasSuffix(name, of) {
			continue
		}
		st.wrong(p.ran > 1, "%s is run %d times", name, p.ran)
		st.wrong(p.sent > 1+p.refused, "%s is sent %d times, and refused %d times", name, p.sent, p.refused)
		st.wrong(p.back > p.ran, "%s is given back %d times", name, p.back)
		charged += p.ran - p.back
		apart = apart || to.op == "all" && p.refused > 0 // its slot was moving
	}
	st.wrong(to.err != nil && strings.Contains(to.err.Error(), "cannot be read"), "cannot read a reply")
	want := map[string]int{"one": 1, "all": 2, "first": 1, "apart": 2, "refund": 1}[to.op]
	calm := !st.troubled(to, false)
	switch {
	case class == "ok" && to.allowed && to.op == "refund":
		st.judgeRefund(to, charged)
	case class == "ok" && to.allowed:
		st.wrong(charged != want, "is charged %d events", charged)
	case apart && !calm: // what is given back may fail
		st.wrong(charged > want, "is charged %d events", charged)
	case class == "timeout" || class == "deadline":
		st.wrong(charged != 0 && (charged != want || calm), "is charged %d events", charged)
	default:
		st.wrong(charged != 0, "is charged %d events", charged)
	}
}

// judgeRefund judges a refund of a call that was charged so much.
func (st *story) judgeRefund(to *told, charged int) {
	switch {
	case to.refund == nil:
		st.wrong(charged != 0, "is charged %d events that were given back", charged)
	case errors.Is(to.refund, store.ErrTimeout) || !errors.Is(to.refund, store.ErrStore): // it may have run
	default:
		st.wrong(charged < 1, "is charged nothing, though the refund has failed: %v", to.refund)
	}
}

// judgeCounts judges what the servers have counted in the end.
func (l *limits) judgeCounts(st *story) {
	charged := map[string]int64{}
	for name, p := range st.b.pages {
		key, _, _ := strings.Cut(name, " ")
		charged[key] += int64(p.ran - p.back)
	}
	for key, n := range l.cluster.counts() {
		st.wrong(charged[key] != n, "%s has %d events, and was charged %d", key, n, charged[key])
		_, name, _ := strings.Cut(key, ":=")
		st.wrong(n > l.rates[name[:1]], "%s has %d events", key, n)
		delete(charged, key)
	}
	for key, n := range charged {
		st.wrong(n != 0, "%s has lost %d events", key, n)
	}
}

// A cluster fails in all the ways in which servers do, a slot of it moves, and a replica takes the place of a master, while many
// callers share limits: one, an All of two on one server or on two, and a First. No call is charged twice or without being
// told so, none ends late, and none as what it is not. Service resumes, and nothing is left. RATELIMIT_SEED and
// RATELIMIT_SCHEDULES are as of TestSchedulesOfFaults.
func TestFaultsOfAClusterBySeed(t *testing.T) {
	t.Parallel()
	schedules(t, newClusterPlan, nil, effort.Of(60, 300, 5_000))
}
