package serve_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/serve"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"

	"github.com/ratelimit-go/ratelimit/serve/internal/testenv"
)

// rule is a descriptor of a random file.
type rule struct {
	key, value            string
	limited               bool
	n, reserved           int
	unit                  string
	shadow, quota, shared bool
	parent                bool // share_parent
	name, replaces        string
	inner                 []*rule
}

var periods = map[string]time.Duration{"second": time.Second, "minute": time.Minute, "hour": time.Hour, "day": 24 * time.Hour}

// randomRules are those of one level, without two for the same.
func randomRules(r *rand.Rand, depth int) []*rule {
	var all []*rule
	seen := map[string]bool{}
	for range 1 + r.IntN(5) {
		one := &rule{key: pick(r, "a", "b", "a_b"), value: pick(r, "", "x", "y", "x*", "*y", "x*y", "*", "b_x")}
		if seen[one.key+"="+one.value] {
			continue
		}
		seen[one.key+"="+one.value] = true
		one.limited, one.n, one.unit = r.IntN(4) > 0, r.IntN(5), pick(r, "second", "minute", "hour")
		one.shadow, one.quota = r.IntN(6) == 0, r.IntN(5) == 0
		one.shared = strings.Contains(one.value, "*") && r.IntN(2) == 0
		one.parent = !one.shared && r.IntN(3) == 0
		if one.n > 1 && r.IntN(2) == 0 {
			one.reserved = 1 + r.IntN(one.n-1)
		}
		one.name = pick(r, "", "", "", "n1", "n2")
		if one.replaces = pick(r, "", "", "", "", "n1", "n2"); one.replaces == one.name {
			one.replaces = ""
		}
		if depth < 2 && r.IntN(3) == 0 {
			one.inner = randomRules(r, depth+1)
		}
		all = append(all, one)
	}
	return all
}

func pick(r *rand.Rand, of ...string) string { return of[r.IntN(len(of))] }

// yaml is the text of a level.
func yaml(rules []*rule, indent string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%sdescriptors:\n", indent)
	for _, r := range rules {
		fmt.Fprintf(&b, "%s  - key: %s\n%s    value: %q\n%s    share_threshold: %v\n%s    share_parent: %v\n%s    shadow_mode: %v\n%s    quota_mode: %v\n",
			indent, r.key, indent, r.value, indent, r.shared, indent, r.parent, indent, r.shadow, indent, r.quota)
		if r.limited {
			fmt.Fprintf(&b, "%s    rate_limit:\n%s      unit: %s\n%s      requests_per_unit: %d\n%s      name: %q\n", indent, indent, r.unit, indent, r.n, indent, r.name)
			if r.reserved > 0 {
				fmt.Fprintf(&b, "%s      reserved: %d\n", indent, r.reserved)
			}
			if r.replaces != "" {
				fmt.Fprintf(&b, "%s      replaces: [{name: %s}]\n", indent, r.replaces)
			}
		}
		if len(r.inner) > 0 {
			b.WriteString(yaml(r.inner, indent+"    "))
		}
	}
	return b.String()
}

// model is what the service should do, told as plainly as can be.
type model struct {
	rules  []*rule
	each   bool
	counts map[string]int
	now    time.Time
}

// match finds the rule of entries, and what its events are counted under.
func (m *model) match(text string) (found *rule, key string) {
	level := m.rules
	for entry := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(entry, "=")
		found = nil
		for kind := range 3 { // exactly, by a pattern, by the key
			for _, r := range level {
				fits := [...]bool{r.value == value, strings.Contains(r.value, "*") && like(r.value, value), r.value == ""}
				if found == nil && r.key == name && fits[kind] && (r.value != "" || kind == 2) {
					found = r
				}
			}
		}
		if found == nil {
			return nil, ""
		}
		if found.shared {
			value = "shared " + found.value
		}
		if !found.parent {
			key += fmt.Sprintf("%q %q;", name, value)
		}
		level = found.inner
	}
	if !found.limited {
		return nil, ""
	}
	return found, fmt.Sprint(key, m.now.Truncate(periods[found.unit]).Unix(), found.unit)
}

func like(pattern, value string) bool {
	return regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*") + "$").MatchString(value)
}

// asked is a descriptor on its way through the model.
type asked struct {
	rule     *rule
	key      string
	n, after int // after it: what is left
	over     bool
}

// decide decides on a request. left reports whether what is left is known exactly.
func (m *model) decide(descriptors []string, hits []int) (whole bool, parts []asked, left bool) {
	for i, text := range descriptors {
		r, key := m.match(text)
		parts = append(parts, asked{rule: r, key: key, n: hits[i]})
	}
	for i := range parts {
		for j := range parts {
			if a, b := parts[i].rule, parts[j].rule; a != nil && a.replaces != "" && b != nil && b.name == a.replaces {
				parts[j].key = ""
			}
		}
	}
	before := maps.Clone(m.counts)
	votes := func(a *asked) bool { return a.key != "" && a.n > 0 && !a.rule.shadow && !a.rule.quota && !m.each }
	denied, again := false, false
	over := func(a *asked, n int) bool { return m.counts[a.key]+n+a.rule.reserved > a.rule.n }
	free := func(a *asked) int { return max(0, a.rule.n-a.rule.reserved-m.counts[a.key]) }
	decided := map[*asked]bool{}
	for i := range parts {
		if a := &parts[i]; votes(a) && a.rule.n == 0 {
			decided[a], a.over, denied = true, true, true
		}
	}
	for ; !denied; again = true { // limits of one count that differ are asked one after the other
		var group []*asked
		sums, by := map[string]int{}, map[string][2]int{}
		for i := range parts {
			a := &parts[i]
			if !votes(a) || decided[a] {
				continue
			}
			numbers := [2]int{a.rule.n, a.rule.reserved}
			if sums[a.key] > 0 && by[a.key] != numbers {
				continue
			}
			by[a.key], decided[a], group = numbers, true, append(group, a)
			sums[a.key] += a.n
		}
		if len(group) == 0 {
			break
		}
		for _, a := range group {
			a.over = over(a, sums[a.key])
			denied = denied || a.over
		}
		for _, a := range group {
			if !denied {
				m.counts[a.key] += a.n
			}
			a.after = free(a)
		}
	}
	gaveBack := denied && again
	if gaveBack {
		m.counts = maps.Clone(before)
	}
	for i := range parts {
		a := &parts[i]
		switch {
		case a.key == "" || decided[a]:
			continue
		case votes(a): // looked at alone, since another one denies
			a.over = over(a, a.n)
		default:
			if a.over = over(a, max(a.n, 1)); !a.over && !denied {
				m.counts[a.key] += a.n
			}
		}
		a.after = free(a)
	}
	quotas, spent := 0, 0
	for i := range parts {
		a := &parts[i]
		if a.key == "" {
			continue
		}
		a.over = a.over && !a.rule.shadow
		if a.rule.quota {
			if quotas++; a.over {
				spent++
			}
		} else {
			whole = whole || a.over
		}
	}
	whole = whole || quotas > 0 && quotas == spent
	if left = !gaveBack; whole && !denied && !m.each {
		m.counts, left = before, false
	}
	return whole, parts, left
}

// slow makes windows so long, for a store whose keys end by a clock of its own.
func slow(rules []*rule) {
	for _, r := range rules {
		r.unit = map[string]string{"second": "hour", "minute": "day", "hour": "day"}[r.unit]
		slow(r.inner)
	}
}

// checkAgainstModel asks both the same, at random, by one clock. With pauses it is always ahead of
// the machine's by more than that can stall.
func checkAgainstModel(t *testing.T, seed uint64, steps int, pauses bool, storeOf func(c *clock) store.Store) {
	r := rand.New(rand.NewPCG(seed, 1))
	c := newClock()
	m := &model{rules: randomRules(r, 0), counts: map[string]int{}, each: r.IntN(4) == 0}
	if pauses {
		slow(m.rules)
	}
	last := time.Now()
	file := fmt.Sprintf("domain: edge\nall_or_none: %v\n", !m.each) + yaml(m.rules, "")
	s, err := serve.New(storeOf(c), rules(t, file))
	require.NoError(t, err)
	for step := range steps {
		c.sleep(time.Duration(r.IntN(3000)) * time.Millisecond)
		if pauses {
			c.sleep(time.Since(last).Truncate(time.Microsecond) + time.Minute)
			last = time.Now()
		}
		m.now = c.now()
		texts, hits, sent := randomAsks(r)
		over, want, left := m.decide(texts, hits)
		answer, err := s.ShouldRateLimit(t.Context(), request(sent...))
		require.NoError(t, err)
		about := fmt.Sprintf("seed %d, step %d: %v\n%s\n%s", seed, step, sent, short(answer), file)
		require.Equal(t, over, answer.GetOverallCode() == pb.RateLimitResponse_OVER_LIMIT, about)
		for i, st := range answer.GetStatuses() {
			require.Equal(t, want[i].over && want[i].key != "", st.GetCode() == pb.RateLimitResponse_OVER_LIMIT, about)
			if want[i].key == "" {
				require.Nil(t, st.GetCurrentLimit(), about)
				continue
			}
			require.EqualValues(t, want[i].rule.n-want[i].rule.reserved, st.GetCurrentLimit().GetRequestsPerUnit(), about)
			if left {
				require.EqualValues(t, want[i].after, st.GetLimitRemaining(), about)
			}
		}
	}
}

// randomAsks are descriptors as the model and as [request] reads them.
func randomAsks(r *rand.Rand) (texts []string, hits []int, sent []string) {
	for range 1 + r.IntN(4) {
		text := pick(r, "a", "b", "a_b") + "=" + pick(r, "", "x", "y", "z", "xy", "xzy", "b_x", "x*")
		for r.IntN(3) == 0 {
			text += "," + pick(r, "a", "b") + "=" + pick(r, "x", "xy", "q")
		}
		texts, hits = append(texts, text), append(hits, pickHits(r))
		sent = append(sent, fmt.Sprintf("%s %d", text, hits[len(hits)-1]))
	}
	return texts, hits, sent
}

func pickHits(r *rand.Rand) int { return [...]int{1, 1, 1, 2, 3, 0}[r.IntN(6)] }

func TestTheServiceDoesWhatItsModelDoes(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("one goroutine races with nobody")
	}
	for seed := range uint64(testenv.Of(60, 1500)) {
		checkAgainstModel(t, seed, 60, false, func(c *clock) store.Store {
			mem := ratelimit.Must(memstore.New(memstore.WithClock(c.now)))
			if seed%2 == 0 {
				return mem
			}
			return servers{mem}
		})
	}
}

// servers is a store of servers for which it can decide together, so that only shadows are asked apart.
type servers struct{ store.Store }

func (servers) ServerOf(key string) string { return key[len(key)-1:] }

func TestTheServiceOnRedisDoesWhatItsModelDoes(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{Addr: testenv.Redis(t), ContextTimeoutEnabled: true})
	defer client.Close()
	for seed := range uint64(testenv.Of(10, 200)) {
		checkAgainstModel(t, seed, 40, true, func(c *clock) store.Store {
			return ratelimit.Must(redisstore.New(client, redisstore.WithClock(c.now), redisstore.WithTimeout(time.Minute), redisstore.WithPrefix(fmt.Sprint("s", seed))))
		})
	}
}

// flaky is a cluster whose servers may fail or hang.
type flaky struct {
	servers
	fails, hangs map[string]bool
}

func (f *flaky) Together(a, b string) bool { return f.ServerOf(a) == f.ServerOf(b) }

func (f *flaky) try(ctx context.Context, key string) error {
	switch s := f.ServerOf(key); {
	case f.fails[s]:
		return failed{store.ErrUnavailable, s}
	case f.hangs[s]:
		<-ctx.Done()
	}
	return ctx.Err()
}

func (f *flaky) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (r store.Reply, err error) {
	if err = f.try(ctx, key); err == nil {
		r, err = f.servers.Take(ctx, ns, key, l, n)
	}
	return r, err
}

func (f *flaky) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	if err := f.try(ctx, requests[0].Key); err != nil {
		return err
	}
	return f.servers.Decide(ctx, requests, replies)
}

func (f *flaky) Refund(ctx context.Context, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
	if err := f.try(ctx, key); err != nil {
		return err
	}
	return f.servers.Refund(ctx, ns, key, l, c)
}

// Whichever servers fail or hang, and whatever the rules are, each request is answered in its caller's time. A denial
// has a descriptor that is over its limit.
func TestServersThatFailAtRandom(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("one goroutine races with nobody")
	}
	for seed := range uint64(testenv.Of(60, 1000)) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 2))
			f := &flaky{servers{memory(t)}, map[string]bool{}, map[string]bool{}}
			file := fmt.Sprintf("domain: edge\nall_or_none: %v\ncharge_over_limit: %v\non_failure: %s\n", r.IntN(4) > 0, r.IntN(3) == 0, pick(r, "open", "closed", "local\ninstances: 2")) + yaml(randomRules(r, 0), "")
			s, err := serve.New(f, rules(t, file), serve.WithLogger(slog.New(slog.DiscardHandler)))
			require.NoError(t, err)
			for range 200 {
				if r.IntN(20) == 0 {
					server := pick(r, "x", "y", "z", "q", "=", "b")
					f.fails[server], f.hangs[server] = r.IntN(3) == 0, r.IntN(3) == 0
				}
				time.Sleep(time.Duration(r.IntN(100)) * time.Millisecond)
				_, _, sent := randomAsks(r)
				if r.IntN(4) == 0 {
					sent = append(sent, "a=x -1")
				}
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				answer, err := s.ShouldRateLimit(ctx, request(sent...))
				require.NoError(t, err, "seed %d: %v\n%s", seed, sent, file)
				require.NoError(t, ctx.Err(), "seed %d: %v\n%s", seed, sent, file)
				cancel()
				if over := pb.RateLimitResponse_OVER_LIMIT; answer.GetOverallCode() == over {
					isOver := func(st *pb.RateLimitResponse_DescriptorStatus) bool { return st.GetCode() == over }
					require.True(t, slices.ContainsFunc(answer.GetStatuses(), isOver), "seed %d: %v\n%s", seed, sent, file)
				}
			}
		})
	}
}
