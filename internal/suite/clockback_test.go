package suite_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
)

// A denied call moves the log. For that moment its limit has a shorter Period, which must not
// decide when the events of the longer one are forgotten.
func TestALogThatADenialMovesLivesByItsOwnPeriod(t *testing.T) {
	for _, way := range []string{"alone", "with another"} {
		mini := redistest.Mini(t)
		s := onRedis(t, mini.Client(t))
		l := ratelimit.PerDay(10)
		lim := newLimiter(t, "sliding_log", s, l, ratelimit.WithLimitFunc(
			func(context.Context, string) (ratelimit.Limit, error) { return l, nil }))
		if way == "with another" {
			lim = all(t, lim, newLimiter(t, "sliding_log", s, ratelimit.PerHour(100)))
		}
		mini.SetTime(start)
		require.Equal(t, 10, admitted(t, lim, 20))
		l = ratelimit.PerSecond(10)
		mini.SetTime(start.Add(-time.Hour))
		require.Zero(t, admitted(t, lim, 1), way)
		l = ratelimit.PerDay(10)
		for i := range 5 {
			mini.FastForward(time.Second)
			mini.SetTime(start.Add(-time.Hour + time.Duration(i+1)*time.Second))
			require.Zero(t, admitted(t, lim, 20), way)
		}
	}
}

// Traces in which the limit of a key changes and the server's clock goes back, by each way that
// a call comes to a server. All ways reply, write and expire alike, and as the Go form does.
func TestTheServersClockGoesBackWhileLimitsChange(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	client := redistest.Shared(t).Client(t)
	for _, algorithm := range algorithms {
		t.Run(algorithm, func(t *testing.T) {
			for seed := range uint64(effort.Of(1, 20)) {
				newRewound(t, client, algorithm, seed).play(t, 60)
			}
		})
	}
}

// way is how calls come: which script, with which arguments.
type way struct {
	name  string
	run   *redis.Script
	joint *redis.Script // of take, within and peek, if they go another way
	batch bool
	key   string
}

// rewound plays a trace on one key for each way, and on a model.
type rewound struct {
	*rand.Rand
	client *redis.Client
	rule   *store.Rule
	ways   []way
	limits []store.Limit
	now    int64 // of the server, Unix µs
	clock  []string
	model  anchored

	receipts []store.Receipt
	trace    strings.Builder
}

// spare is what all keys live longer than they have to, in ms, so that none expires by the
// clock that a test cannot set.
const spare = 3600_000

// newRewound changes in the scripts where the server's time comes from, and adds to each expiry.
func newRewound(t *testing.T, client *redis.Client, algorithm string, seed uint64) *rewound {
	t.Helper()
	p := new(prepared)
	newLimiter(t, algorithm, p, ratelimit.PerHour(1))
	prefix := fmt.Sprintf("%s{%s %d}", redistest.Prefix(t), algorithm, seed)
	expiry := regexp.MustCompile(`/ 1000\)`)
	script := func(text string) *redis.Script {
		require.Contains(t, text, "call('TIME')")
		require.Regexp(t, expiry, text)
		text = strings.ReplaceAll(text, "call('TIME')", fmt.Sprintf("{ call('GET', '%[1]s s'), call('GET', '%[1]s us') }", prefix))
		return redis.NewScript(expiry.ReplaceAllString(text, fmt.Sprintf("$0 + %d", spare)))
	}
	_, general, found := strings.Cut(p.rule.Script, "\n-- Shared by all scripts")
	require.True(t, found)
	whole := script(p.rule.Script)
	r := &rewound{
		Rand: rand.New(rand.NewPCG(seed, 11)), client: client, rule: p.rule, now: start.UnixMicro(),
		clock: []string{prefix + " s", prefix + " us"},
		ways: []way{
			{name: "alone", run: whole, key: prefix + "alone"},
			{name: "without the plain case", run: script("-- " + general), key: prefix + "general"},
			{name: "in a batch", run: script(p.rule.BatchScript(p.rule)), batch: true, key: prefix + "batch"},
			{name: "with others", run: whole, joint: script(p.rule.JointScript([]*store.Rule{p.rule})), key: prefix + "joint"},
		},
	}
	r.model.rule = p.rule
	const minute = 60e6
	for _, period := range []int64{minute, 3 * minute, 60 * minute, 24 * 60 * minute} {
		r.limits = append(r.limits, store.Limit{Rate: 10, Period: period, Burst: 10}, store.Limit{Rate: 3 + r.Int64N(90), Period: period})
		last := &r.limits[len(r.limits)-1]
		if last.Burst = last.Rate; strings.HasSuffix(algorithm, "bucket") {
			last.Burst = 1 + r.Int64N(2*last.Rate)
		}
	}
	r.Shuffle(len(r.limits), func(i, j int) { r.limits[i], r.limits[j] = r.limits[j], r.limits[i] })
	r.limits = r.limits[:3]
	return r
}

func (r *rewound) play(t *testing.T, calls int) {
	t.Helper()
	ctx := t.Context()
	l := r.limits[0]
	for range calls {
		if r.IntN(3) == 0 {
			l = r.limits[r.IntN(len(r.limits))]
		}
		r.tick(l)
		require.NoError(t, r.client.MSet(ctx, r.clock[0], r.now/1e6, r.clock[1], r.now%1e6).Err())
		op, n, more := r.call(l)
		fmt.Fprintf(&r.trace, "%+d %s(%d) under %+v %v\n", r.now-start.UnixMicro(), op, n, l, more)
		want := r.expect(op, l, n, more)
		began := time.Now()
		for _, w := range r.ways {
			got, err := w.call(ctx, r.client, op, l, n, more)
			require.NoError(t, err, "%s\n%s", w.name, &r.trace)
			require.Equal(t, r.meant(want), r.meant(got), "%s\n%s", w.name, &r.trace)
			if r.model.empty() {
				continue
			}
			require.Equal(t, value(t, r.client, r.ways[0].key), value(t, r.client, w.key), "%s\n%s", w.name, &r.trace)
			if r.model.life > 0 {
				ttl := r.client.PTTL(ctx, w.key).Val() - spare*time.Millisecond
				require.InDelta(t, time.Duration(r.model.life)*time.Microsecond, ttl, float64(time.Since(began)+2*time.Millisecond), "%s\n%s", w.name, &r.trace)
			}
		}
	}
}

// meant is a reply, with one text for each meaning. A sliding window says of a spend that has
// ended whether it was counted in another Period.
func (r *rewound) meant(reply []int64) []int64 {
	if r.rule.Name != "sliding_window" || reply[3] != 0 || reply[2] != -1 && reply[2] != 0 {
		return reply
	}
	return []int64{reply[0], reply[0] * reply[1], 0, 0} // X of what is never admitted says nothing
}

// tick moves the clock: forward, and now and then back, by little or by many Periods.
func (r *rewound) tick(l store.Limit) {
	switch r.IntN(12) {
	case 0, 1:
		r.now -= r.Int64N(2 * l.Period)
	case 2:
		r.now -= r.Int64N(40 * l.Period)
	case 3:
		r.now += r.Int64N(2 * l.Period)
	case 4, 5:
	default:
		r.now += r.Int64N(1 + l.Period/l.Rate)
	}
}

// call makes up a call, and its arguments after n.
func (r *rewound) call(l store.Limit) (op string, n int64, more []any) {
	n = 1
	switch r.IntN(4) {
	case 0:
		n = 1 + r.Int64N(5)
	case 1:
		n = 1 + r.Int64N(l.Burst)
	}
	switch x := r.IntN(20); {
	case x == 0:
		return "peek", n, nil
	case x == 1:
		return "upto", n, nil
	case x < 4:
		return "charge", n, []any{int64(math.MaxInt32)}
	case x < 6 && strings.HasSuffix(r.rule.Name, "bucket"):
		return "within", n, []any{1 + r.Int64N(l.Period)}
	case x < 9 && len(r.receipts) > 0:
		c := r.receipts[len(r.receipts)-1-r.IntN(min(len(r.receipts), 3))]
		over := 0
		if c.Overdrawn {
			over = 1
		}
		return "refund", n, []any{c.At, c.Due, c.Rate, c.Period, over}
	}
	return "take", n, nil
}

// call makes a call this way.
func (w way) call(ctx context.Context, c *redis.Client, op string, l store.Limit, n int64, more []any) ([]int64, error) {
	args := append([]any{op, l.Rate, l.Period, l.Burst, n}, more...)
	script := w.run
	switch {
	case w.batch:
		args = append([]any{"batch", "", 1}, args...)
	case w.joint != nil && (op == "take" || op == "within" || op == "peek"):
		script = w.joint
		args = append([]any{op, 1, l.Rate, l.Period, l.Burst, n}, more...)
	}
	return script.Run(ctx, c, []string{w.key}, args...).Int64Slice()
}

// expect makes the call on the model.
func (r *rewound) expect(op string, l store.Limit, n int64, more []any) []int64 {
	m := &r.model
	if op == "refund" {
		m.refund(l, r.now, store.Receipt{At: more[0].(int64), Due: more[1].(int64), Rate: more[2].(int64), Period: more[3].(int64), Overdrawn: more[4] == 1, N: n})
		return []int64{0, 0, 0, 0}
	}
	if op == "within" {
		l = l.TurnBefore(more[0].(int64))
	}
	reply := m.step(op, l, r.now, n)
	if op == "upto" && !reply.OK() {
		n = max(1, r.rule.Available(l, reply))
		reply = m.step(op, l, r.now, n)
	}
	ok := int64(0)
	if reply.OK() {
		ok = 1
	}
	if op == "charge" || reply.OK() && op != "peek" {
		r.receipts = append(r.receipts, m.receipt(l, reply.X))
	}
	return []int64{ok, reply.X, reply.Y, reply.Z}
}

// anchored is a value as package store says of a clock that can be set back. It has a plain
// list in place of a log.
type anchored struct {
	rule  *store.Rule
	state store.State
	limit store.Limit // under which state was counted

	entries []logged
	cutoff  int64 // events up to here are gone
	period  int64 // of the last admission
	life    int64 // how long the value lives from the last call on, in µs; 0 if that call did not say
}

type logged struct{ at, n int64 }

func (m *anchored) empty() bool {
	return m.state.Whole == 0 && m.state.Part == 0 && (len(m.entries) == 0 || m.newest() <= m.cutoff)
}

func (m *anchored) newest() int64 { return m.entries[len(m.entries)-1].at }

// ttl is how long the state matters, from its time on.
func (m *anchored) ttl() int64 {
	if m.rule.NewLog != nil {
		return m.period
	}
	return m.rule.TTL(m.state, m.limit)
}

// receipt is that of the charge at at, which is the last.
func (m *anchored) receipt(l store.Limit, at int64) store.Receipt {
	return store.Receipt{At: at, Due: at + m.ttl(), Rate: l.Rate, Period: l.Period, Overdrawn: m.state.Whole >= 1<<31}
}

// step decides, and keeps what a store has to keep.
func (m *anchored) step(op string, l store.Limit, now, n int64) (r store.Reply) {
	old := *m
	m.life = 0
	moved := m.anchor(now)
	if m.rule.NewLog != nil {
		r = m.log(op, l, now, n)
	} else {
		r = m.five(op, l, now, n)
	}
	switch {
	case op == "peek":
		*m = old
		m.life = 0
	case op == "charge" || r.OK() || moved && !m.empty():
		m.life = m.ttl()
	}
	return r
}

// anchor moves what is dated later than now.
func (m *anchored) anchor(now int64) (moved bool) {
	if m.empty() {
		m.state, m.entries = store.State{}, nil
		return false
	}
	if m.rule.NewLog == nil {
		moved = m.state.At > now
		m.state.At = min(m.state.At, now)
		if m.state.At+m.ttl() <= now {
			m.state = store.State{}
		}
		return moved
	}
	if by := now - m.newest(); by < 0 {
		m.entries = append([]logged(nil), m.entries...)
		for i := range m.entries {
			m.entries[i].at += by
		}
		m.cutoff += by
		return true
	}
	return false
}

// five decides on five numbers.
func (m *anchored) five(op string, l store.Limit, now, n int64) store.Reply {
	next, r := m.rule.Step(m.state, l, now, n)
	if op == "charge" && !r.OK() {
		r.X, next = next.At, m.rule.Overdrawn(next, l, math.MaxInt32)
	}
	if op == "charge" || r.OK() {
		m.state, m.limit = next, l
	}
	return r
}

// log decides on the list.
func (m *anchored) log(op string, l store.Limit, now, n int64) store.Reply {
	r := store.Reply{Outcome: store.AdmittedIf(n <= l.Rate), X: now}
	dead := max(now-l.Period, m.cutoff)
	if len(m.entries) > 0 && (m.newest() <= dead || m.newest()+m.period <= now) {
		m.entries = nil
	}
	if len(m.entries) == 0 {
		m.cutoff, dead = now-l.Period, now-l.Period
	} else {
		for _, e := range m.entries {
			if e.at > dead {
				r.Y += e.n
			}
		}
		r.Z = m.newest() + l.Period - now
		r.Outcome = store.AdmittedIf(r.Y+n <= l.Rate)
	}
	if op == "charge" || r.OK() {
		m.entries = append(append([]logged(nil), m.entries...), logged{now, n})
		m.cutoff, m.period = dead, l.Period
		return r
	}
	if n <= l.Rate {
		need := r.Y + n - l.Rate
		for _, e := range m.entries {
			if e.at > dead && need > 0 {
				need -= e.n
				r.X = e.at + l.Period - now
			}
		}
	}
	return r
}

// refund gives back what is still charged of c, and moves nothing.
func (m *anchored) refund(l store.Limit, now int64, c store.Receipt) {
	m.life = 0
	if m.empty() {
		return
	}
	if m.rule.NewLog == nil {
		if now = max(now, m.state.At); now < m.state.At+m.ttl() {
			m.state = m.rule.Refund(m.state, l, now, c)
		}
		return
	}
	now = max(now, m.newest())
	if c.At <= max(now-l.Period, m.cutoff) || m.newest()+m.period <= now {
		return
	}
	var left []logged
	for i := len(m.entries) - 1; i >= 0; i-- {
		e := m.entries[i]
		if e.at == c.At {
			back := min(e.n, c.N)
			e.n, c.N = e.n-back, c.N-back
		}
		if e.n > 0 {
			left = append([]logged{e}, left...)
		}
	}
	m.entries = left
}
