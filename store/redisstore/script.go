package redisstore

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/carrier"
)

const (
	eval    = "eval"
	evalsha = "evalsha"

	keyArg = 3 // the index of the first key in an EVALSHA
)

// script is a script of some rules, and its SHA-1. Both are boxed once for all calls.
type script struct {
	text, sha any
	rules     []*store.Rule // in their order; none for the script of Reset
	shared    bool          // calls may share it
	more      sync.Map      // *script of these rules and one more, by *store.Rule
	limits    [mostKept]atomic.Pointer[boxed]
}

// mostKept is the number of requests of a call whose limits are kept as arguments.
const mostKept = 4

// boxed is a limit as arguments. Most calls of a script have the limits of the call before.
type boxed struct {
	rule                *store.Rule
	limit               store.Limit
	rate, period, burst any
}

// appendLimit appends to args the limit and the count of the i-th request of a call, which follow its operation.
func (s *Store) appendLimit(args []any, sc *script, i int, r *request) []any {
	var kept *atomic.Pointer[boxed]
	var b *boxed
	if i < mostKept {
		kept = &sc.limits[i]
		b = kept.Load()
	}
	if b == nil || b.limit != r.limit || b.rule != r.rule || r.limit.Calendar() != nil {
		b = &boxed{r.rule, r.limit, r.limit.Rate, s.period(r), r.limit.Burst}
		if kept != nil && r.limit.Calendar() == nil {
			kept.Store(b)
		}
	}
	return append(args, b.rate, b.period, b.burst, r.count())
}

func newScript(text string) *script {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // as above
	return &script{text: text, sha: hex.EncodeToString(sum[:])}
}

// with returns the script of sc's rules and one more.
func (sc *script) with(rule *store.Rule) *script {
	if next, ok := sc.more.Load(rule); ok {
		return next.(*script)
	}
	rules := append(slices.Clone(sc.rules), rule)
	made := newScript(rule.Script(rules))
	made.rules, made.shared = rules, true
	next, _ := sc.more.LoadOrStore(rule, made)
	return next.(*script)
}

// each calls f with the scripts that were made of sc's rules and others.
func (sc *script) each(f func(*script)) {
	sc.more.Range(func(_, next any) bool {
		f(next.(*script))
		next.(*script).each(f)
		return true
	})
}

// scriptOf returns the script of c, and gives each of its requests the number of its rule. The
// rules are in the order of their names, so that the order of the requests does not matter.
func (s *Store) scriptOf(c *call) (*script, error) {
	if len(c.more) == 0 && c.first.rule.Script != nil {
		c.first.number = 1
		return s.scripts.with(c.first.rule), nil
	}
	var few [4]*store.Rule
	rules := few[:0]
	for i := range c.size() {
		rule := c.request(i).rule
		if rule.Script == nil {
			return nil, fmt.Errorf("%w: the rule %q has no script", store.ErrStore, rule.Name)
		}
		if !slices.Contains(rules, rule) {
			rules = append(rules, rule)
		}
	}
	slices.SortStableFunc(rules, func(a, b *store.Rule) int { return strings.Compare(a.Name, b.Name) })
	sc := &s.scripts
	for _, rule := range rules {
		sc = sc.with(rule)
	}
	for i := range c.size() {
		r := c.request(i)
		r.number = 1 + slices.Index(rules, r.rule)
	}
	return sc, nil
}

// arguments appends an EVAL or EVALSHA of calls that share a script to args: see scripts/groups.lua.
func (s *Store) arguments(args []any, calls []*call, name any, op *operation) ([]any, error) {
	sc := calls[0].script
	text := sc.sha
	if name == eval {
		text = sc.text
	}
	var clock any = ""
	if s.clock != nil {
		now, err := s.now()
		if err != nil {
			return nil, err
		}
		clock = now
	}
	if first := &calls[0].first; len(calls) == 1 && len(calls[0].more) == 0 {
		op.name = first.op
		args = s.appendLimit(append(args, name, text, 1, first.key, op), sc, 0, first)
		if s.clock != nil {
			args = append(args, clock)
		}
		return args, nil
	}
	op.name = "groups"
	keys := 0
	for _, c := range calls {
		keys += c.size()
	}
	args = append(slices.Grow(args, keys+12+5*calls[0].size()), name, text, keys)
	for _, c := range calls {
		for i := range c.size() {
			args = append(args, c.request(i).key)
		}
	}
	args = append(args, op, clock)
	for from, to := 0, 0; from < len(calls); from = to {
		c := calls[from]
		for to++; to < len(calls) && c.differsInKeysOnly(calls[to]); {
			to++
		}
		args = append(args, to-from, c.alternative(0))
		for i := range c.size() {
			r := c.request(i)
			if i > 0 && r.orElse {
				args = append(args, 1, -c.alternative(i))
			}
			args = s.appendLimit(append(args, r.what()), sc, i, r)
		}
	}
	return args, nil
}

// gather makes calls that differ only in their keys neighbors, so that they share a run. Calls for one key stay in order.
func gather(calls []*call) {
	for from := 0; from < len(calls); {
		to := from + 1
		for i := to; i < len(calls); i++ {
			if c := calls[i]; calls[from].differsInKeysOnly(c) && !slices.ContainsFunc(calls[to:i], c.sharesKey) {
				copy(calls[to+1:i+1], calls[to:i])
				calls[to] = c
				to++
			}
		}
		from = to
	}
}

// run makes c within b, at first on v if that is not nil, and puts its decisions into replies. As long as it is certain
// that nothing ran, and time is left, it tries again.
func (s *Store) run(b carrier.Budget, v *server, c *call, replies []store.Reply) error {
	for {
		values, f := s.try(b, v, c)
		if f == nil {
			return parse(values, replies)
		}
		if v = s.link.redirected(c, f.Err); v != nil {
			b.Together = true // a call that goes alone has no ASKING
			continue
		}
		if s.anotherWay(b, c, f) {
			continue
		}
		if c.viaClient, c.sent = false, 0; !b.Again(f) {
			return b.Fail(f)
		}
	}
}

// anotherWay reports whether c is tried again without a pause, because there is another way to make it.
func (s *Store) anotherWay(b carrier.Budget, c *call, f *fault) bool {
	switch {
	case errors.Is(f.Err, errRefusedBundle):
		c.unshared = true
	case c.size() > 1 && redis.HasErrorPrefix(f.Err, "TRYAGAIN"): // their slot is moving, so the node can tell only where each single key is
		f.Err, f.Again = fmt.Errorf("%w: %w", see.ErrApart, f.Err), false
		return false
	case !c.unshared && redis.HasErrorPrefix(f.Err, "TRYAGAIN"): // other keys of its script are on their way
		c.unshared = true
	case s.link.slots != nil && !c.viaClient && elsewhere(f.Err):
		c.viaClient = true
	case errors.Is(f.Err, errRested) && c.rested < mostRested: // that connection is closed now, so another attempt finds another one
		c.rested++
		return time.Now().Before(b.End)
	default:
		return false
	}
	return true
}

// hasMoved reports whether another server than v has the keys of c by now, as after a shard of a Ring was removed.
func (s *Store) hasMoved(c *call, v *server) bool {
	if v == nil || s.link.owner == nil {
		return false
	}
	owner, err := s.link.owner(c.first.key)
	return err == nil && s.link.of(owner) != v
}

// try makes one attempt.
func (s *Store) try(b carrier.Budget, v *server, c *call) (_ []int64, f *fault) {
	var err error
	if c.viaClient {
		v = s.link.whole
	} else if v == nil {
		v, err = s.link.server(b, c.first.key)
	}
	if err != nil {
		err = s.link.whole.Explain(err, false)
	} else {
		var after call
		if after, err = v.Do(b, *c); err == nil {
			if s.link.slots != nil {
				s.link.slots.answered(c.first.key)
			}
			return after.values, nil
		}
	}
	f = faultOf(err)
	if errors.Is(f.Class, store.ErrUnavailable) && errors.Is(f.Err, redis.ErrClosed) && s.hasMoved(c, v) {
		f.Again = true // nothing ran
	}
	if s.link.slots != nil {
		s.link.slots.failed(*f, c.first.key)
	}
	return nil, f
}

// parse reads a script's reply, four integers for each decision.
func parse(list []int64, replies []store.Reply) error {
	if len(list) != 4*len(replies) {
		return fmt.Errorf("%w: the reply has %d integers, want %d", store.ErrStore, len(list), 4*len(replies))
	}
	for i := range replies {
		v := list[4*i : 4*i+4]
		if v[0] < 0 || v[0] > 2 || v[0] == 2 && i == 0 { // only an alternative replies 2, and the first request is always decided
			return fmt.Errorf("%w: a decision in the reply begins with %d, want 0 or 1", store.ErrStore, v[0])
		}
		if replies[i] = (store.Reply{Outcome: store.AdmittedIf(v[0] == 1), X: v[1], Y: v[2], Z: v[3]}); v[0] == 2 {
			replies[i].Outcome = store.NotAsked
		}
	}
	return nil
}
