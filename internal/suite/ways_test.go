package suite_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
)

// question is a call as scripts/groups.lua has it.
type question struct {
	what  string // the operation with its arguments
	limit []any  // rate, period, burst and n
	clock []any  // the caller's, or none
}

// questionOf is a call with these arguments: the operation, rate, period, burst and n, what the operation has
// besides, and the caller's clock if it has one. A take in time is "within".
func questionOf(args []any) question {
	what := args[0].(string)
	more := 5 + map[string]int{"within": 1, "charge": 1, "refund": 5}[what]
	if what == "within" {
		what = "take"
	}
	for _, x := range args[5:more] {
		what += fmt.Sprint(" ", x)
	}
	return question{what, args[1:5], args[more:]}
}

// alone are the arguments of a call that is alone in its script.
func (q question) alone() []any { return slices.Concat([]any{q.what}, q.limit, q.clock) }

// request are those of a request of a group, on a key of the rule of this number.
func (q question) request(number int) []any {
	what := strconv.Itoa(number)
	if q.what != "take" {
		what += " " + q.what
	}
	return append([]any{what}, q.limit...)
}

// runOf are the arguments of so many groups of these requests.
func runOf(count int, requests ...[]any) []any {
	return append([]any{count, len(requests)}, slices.Concat(requests...)...)
}

// groupsOf are the arguments of a script of these runs of groups, by a caller's clock or the server's.
func groupsOf(clock []any, runs ...[]any) []any {
	if len(clock) == 0 {
		clock = []any{""}
	}
	return append(append([]any{"groups"}, clock...), slices.Concat(runs...)...)
}

// halves cuts a script into its plain case, which replies nothing if the general script has to go on, and into
// that without a plain case.
func halves(t *testing.T, script string) (plain, general string) {
	t.Helper()
	const header = "local replies, run, done, now, admitted = {}, 3, 0\n"
	plain, general, found := strings.Cut(script, "\n-- Shared by all scripts")
	require.True(t, found && strings.Contains(plain, header))
	return plain, header + "-- " + general
}

// way is how a call comes to a server. All ways reply, write and expire alike.
type way struct {
	name   string
	script *redis.Script
	number int  // of the rule, in a script of groups
	among  bool // a group of its own is between two others; or else it is one of two requests of a group
}

// waysOf are all ways of a rule, each with and without the plain case. The other rule is of those beside it.
func waysOf(t *testing.T, rule, other *store.Rule) []way {
	t.Helper()
	own, both := rule.Script([]*store.Rule{rule}), rule.Script([]*store.Rule{other, rule})
	_, ownGeneral := halves(t, own)
	_, bothGeneral := halves(t, both)
	return []way{
		{"alone", noted(own), 0, false}, {"alone, without the plain case", noted(ownGeneral), 0, false},
		{"among groups", noted(own), 1, true}, {"among groups, without the plain case", noted(ownGeneral), 1, true},
		{"in a group of two rules", noted(both), 2, false}, {"in a group of two rules, without the plain case", noted(bothGeneral), 2, false},
	}
}

// some are ways by which the i-th trace comes in a plain run: alone, with and without the plain case, and one of
// the others in turn. A full run has all.
func some(ways []way, i int) []way {
	if effort.Full() {
		return ways
	}
	return append(slices.Clone(ways[:2]), ways[2+i%(len(ways)-2)])
}

// besides is the rule of what is asked beside one of algorithm.
func besides(t *testing.T, algorithm string) *store.Rule {
	t.Helper()
	return ruleOf(t, algorithms[(slices.Index(algorithms, algorithm)+1)%len(algorithms)])
}

func loadWays(t *testing.T, client *redis.Client, ways []way) {
	t.Helper()
	for _, w := range ways {
		require.NoError(t, w.script.Load(t.Context(), client).Err())
	}
}

// asked is what comes of a call.
type asked struct {
	way
	question question
	cmd      *redis.Cmd
	charged  *redis.IntCmd // how many keys beside it
}

// ask asks the way's script for a call on a key. Beside it are takes of one event on new keys, which fit. So
// they are all charged, but for one that is in a group with a denial.
func (w way) ask(ctx context.Context, p redis.Pipeliner, key string, args []any) *asked {
	a := &asked{way: w, question: questionOf(args)}
	beside := question{"take", []any{1, 1000, 1, 1}, nil}.request(1)
	before, after := key+" before", key+" after"
	switch q := a.question; {
	case w.number == 0:
		a.cmd = p.EvalSha(ctx, w.script.Hash(), []string{key}, q.alone()...)
		return a
	case w.among || a.refunds():
		p.Del(ctx, before, after)
		a.cmd = p.EvalSha(ctx, w.script.Hash(), []string{before, key, after}, groupsOf(q.clock, runOf(1, beside), runOf(1, q.request(w.number)), runOf(1, beside))...)
	default:
		p.Del(ctx, before, after)
		a.cmd = p.EvalSha(ctx, w.script.Hash(), []string{before, key}, groupsOf(q.clock, runOf(1, beside, q.request(w.number)))...)
	}
	a.charged = p.Exists(ctx, before, after)
	return a
}

func (a *asked) refunds() bool { return strings.HasPrefix(a.question.what, "refund") }

// reply is the one to the call. It is an error, too, if what stands beside the call is not as it should be.
func (a *asked) reply() ([]any, error) {
	of, err := a.cmd.Slice()
	if a.number == 0 || err != nil {
		return of, err
	}
	charged, size := int64(2), 12
	if !a.among && !a.refunds() {
		charged, size = 1, 8
	}
	if len(of) != size {
		return nil, fmt.Errorf("%d elements: %v", len(of), of)
	}
	reply := of[4:8]
	if votes := strings.HasPrefix(a.question.what, "take") || a.question.what == "gate" || a.question.what == "upto"; size == 8 && votes && reply[0] == int64(0) {
		charged = 0
	}
	for i := 0; i < size; i += 8 {
		if beside := of[i : i+4]; beside[0] != int64(1) || beside[2] != int64(0) || beside[3] != int64(0) || beside[1] != of[1] {
			return nil, fmt.Errorf("what is beside the call replies %v", beside)
		}
	}
	if a.charged.Val() != charged {
		return nil, fmt.Errorf("%d keys beside the call are charged, and not %d: %v", a.charged.Val(), charged, of)
	}
	if text, ok := reply[0].(string); ok {
		if !slices.Equal(reply[1:], []any{int64(0), int64(0), int64(0)}) {
			return nil, fmt.Errorf("a call that fails replies %v", reply)
		}
		return nil, errors.New(text)
	}
	return reply, nil
}

// The server's clock is read once for all groups of a script, wherever the plain case ends. By another reading
// in the middle, groups would be of two times.
func TestAScriptOfGroupsReadsTheServersClockOnce(t *testing.T) {
	client := redistest.Start(t).Client(t)
	for _, algorithm := range append([]string{"ban"}, algorithms...) {
		rule, other := ruleOf(t, algorithm), ruleOf(t, "token_bucket")
		take, look := question{"take", []any{3, 60_000_000, 3, 1}, nil}, question{"look", []any{3, 60_000_000, 3, 1}, nil}
		one, two := runOf(2, take.request(1)), runOf(1, take.request(1), take.request(1))
		for name, runs := range map[string][][]any{
			"one": {runOf(1, take.request(1))}, "plain": {one, two}, "first general": {runOf(1, look.request(1)), one, two}, "then general": {one, runOf(1, look.request(1)), two},
			"a group is general": {one, runOf(1, take.request(1), look.request(1)), two},
		} {
			for of, script := range map[string]string{"one rule": rule.Script([]*store.Rule{rule}), "two rules": rule.Script([]*store.Rule{rule, other})} {
				require.NoError(t, client.FlushAll(t.Context()).Err())
				require.NoError(t, client.Set(t.Context(), timeKey, int64(1_700_000_000_123_456), 0).Err())
				args, keys := groupsOf(nil, runs...), []string{}
				for _, run := range runs {
					for range run[0].(int) * run[1].(int) {
						keys = append(keys, mateKey(len(keys)))
					}
				}
				reply, err := noted(script).Run(t.Context(), client, keys, args...).Slice()
				require.NoError(t, err, "%s of %s, %s", name, algorithm, of)
				for i := range keys {
					require.Equal(t, []any{int64(1), int64(1_700_000_000_123_456), int64(0), int64(0)}, reply[4*i:4*i+4], "%s of %s, %s", name, algorithm, of)
				}
				require.Equal(t, "1", client.Get(t.Context(), timeKey+" reads").Val(), "%s of %s, %s", name, algorithm, of)
				args[0] = "none"
				before := changes(t, client)
				given, err := noted(script).Run(t.Context(), client, keys, args...).Slice()
				require.NoError(t, err)
				require.Empty(t, given, "calls that were given up")
				require.Equal(t, before, changes(t, client))
				require.Equal(t, "1", client.Get(t.Context(), timeKey+" reads").Val())
			}
		}
	}
}

// A group that fails has written nothing, wherever in it the value stands that is not ours, and its replies are
// as many as another's. All groups before and after it are charged. One that has a script of its own fails with
// that.
func TestAGroupThatFailsLeavesAllOthers(t *testing.T) {
	for name, client := range map[string]*redis.Client{"a server": redistest.Start(t).Client(t), "miniredis": redistest.Mini(t).Client(t)} {
		for _, algorithm := range append([]string{"ban"}, algorithms...) {
			rule, other := ruleOf(t, algorithm), besides(t, algorithm)
			for of, script := range map[string]string{"one rule": rule.Script([]*store.Rule{rule}), "two rules": rule.Script([]*store.Rule{rule, other})} {
				second := map[string]int{"one rule": 1, "two rules": 2}[of]
				take, upto := question{"take", []any{3, int64(3_600_000_000), 3, 1}, nil}, "upto"
				if algorithm == "ban" { // whose takes all have a time
					take.what, upto = "take 3600000001", "take 3600000001"
				}
				plain := [][]any{take.request(1), take.request(second), take.request(1)}
				general := [][]any{take.request(1), question{"take 3600000001", take.limit, nil}.request(second), question{upto, take.limit, nil}.request(1)}
				for kind, requests := range map[string][][]any{"plain": plain, "general": general} {
					for bad := range 3 {
						require.NoError(t, client.FlushAll(t.Context()).Err())
						require.NoError(t, client.Set(t.Context(), foreignKey, "none of ours", 0).Err())
						var keys []string
						for i := range 11 {
							keys = append(keys, mateKey(i))
						}
						keys[4+bad] = foreignKey
						note := fmt.Sprintf("%s, %s, %s, %s, key %d", name, algorithm, of, kind, bad)
						ours := algorithm
						if bad == 1 && second == 2 {
							ours = other.Name
						}
						one := redis.NewScript(script)
						reply, err := one.Run(t.Context(), client, keys, groupsOf(nil, runOf(1, take.request(1)), runOf(3, requests...), runOf(1, take.request(second)))...).Slice()
						require.NoError(t, err, note)
						require.Len(t, reply, 4*11, note)
						require.Equal(t, failed(notOurs(ruleOf(t, ours)), 3), reply[16:28], note)
						for i, key := range keys {
							at, fails := reply[4*i:4*i+4], i >= 4 && i < 7
							if !fails {
								require.Equal(t, []any{int64(1), reply[1], int64(0), int64(0)}, at, note)
							}
							require.Equal(t, key == foreignKey || !fails, client.Exists(t.Context(), key).Val() == 1, "%s: %s", note, key)
						}
						require.Equal(t, "none of ours", client.Get(t.Context(), foreignKey).Val())

						err = one.Run(t.Context(), client, keys[4:7], groupsOf(nil, runOf(1, requests...))...).Err()
						require.ErrorContains(t, err, notOurs(ruleOf(t, ours)), note)
						require.Zero(t, client.Exists(t.Context(), slices.DeleteFunc(keys[4:7], func(key string) bool { return key == foreignKey })...).Val(), note)
					}
				}
			}
		}
	}
}

// A server without memory refuses what is charged, and tells what is denied. Of a group that it refuses there is
// nothing.
func TestAServerWithoutMemoryFailsTheGroupsThatWrite(t *testing.T) {
	client := redistest.Start(t).Client(t)
	for _, algorithm := range append([]string{"ban"}, algorithms...) {
		rule := ruleOf(t, algorithm)
		take := question{"take", []any{1, int64(3_600_000_000), 1, 1}, nil}
		for name, last := range map[string]question{"plain": take, "general": {"take 1", take.limit, nil}} {
			script := redis.NewScript(rule.Script([]*store.Rule{rule}))
			require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "0").Err())
			require.NoError(t, client.FlushAll(t.Context()).Err())
			full, free := []string{mateKey(0), mateKey(1)}, []string{mateKey(2), mateKey(3)}
			err := script.Run(t.Context(), client, full, groupsOf(nil, runOf(2, take.request(1)))...).Err()
			require.NoError(t, err)
			require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "1").Err())
			for i := range 2 { // which of the groups come first
				runs := [][]any{runOf(2, take.request(1), last.request(1)), runOf(2, last.request(1))}
				keys := [][]string{slices.Concat(free, full), {free[0], full[0]}}
				if i == 1 {
					slices.Reverse(runs)
					slices.Reverse(keys)
				}
				reply, err := script.Run(t.Context(), client, slices.Concat(keys...), groupsOf(nil, runs...)...).Slice()
				require.NoError(t, err, "%s, %s", algorithm, name)
				require.Len(t, reply, 24)
				for from, size := range []map[int]int{{0: 2, 16: 1}, {0: 1, 8: 2}}[i] {
					require.Contains(t, reply[from], "OOM ", "%s, %s", algorithm, name)
					require.Equal(t, failed("", size)[1:], reply[from+1:from+4*size], "%s, %s", algorithm, name)
				}
				for _, at := range [][]int{{8, 12, 20}, {4, 16, 20}}[i] {
					require.Equal(t, int64(0), reply[at], "%s, %s: %v", algorithm, name, reply)
				}
			}
			require.ErrorContains(t, script.Run(t.Context(), client, free[:1], last.alone()...).Err(), "OOM ", "%s, %s", algorithm, name)
			require.ErrorContains(t, script.Run(t.Context(), client, free, groupsOf(nil, runOf(1, take.request(1), last.request(1)))...).Err(), "OOM ", "%s, %s", algorithm, name)
			alone, err := script.Run(t.Context(), client, full[:1], last.alone()...).Slice()
			require.NoError(t, err, "%s, %s", algorithm, name)
			require.Equal(t, int64(0), alone[0])
			require.Zero(t, client.Exists(t.Context(), free...).Val())
		}
	}
}

// alternativeTo are the arguments of a group of these requests that is decided only if the one before it was denied.
func alternativeTo(requests ...[]any) []any {
	return append([]any{1, -len(requests)}, slices.Concat(requests...)...)
}

// An alternative is decided if the group before it was denied, in the plain case and without it, and among others.
// What has failed has no alternative.
func TestAlternativesAreDecidedInTheirOrder(t *testing.T) {
	for name, client := range map[string]*redis.Client{"a server": redistest.Start(t).Client(t), "miniredis": redistest.Mini(t).Client(t)} {
		for _, algorithm := range append([]string{"ban"}, algorithms...) {
			rule, other := ruleOf(t, algorithm), besides(t, algorithm)
			script := redis.NewScript(rule.Script([]*store.Rule{rule, other}))
			limit := []any{1, int64(3_600_000_000), 1, 1}
			plain, general := question{"take", limit, nil}, question{"take 1", limit, nil}
			if algorithm == "ban" { // whose takes all have a time
				general.what = "take 3600000001"
				plain = general
			}
			for kind, of := range map[string][3]question{"plain": {plain, plain, plain}, "general": {general, general, general}, "first general": {general, plain, plain}, "then general": {plain, general, plain}} {
				require.NoError(t, client.FlushAll(t.Context()).Err())
				note := fmt.Sprintf("%s, %s, %s", name, algorithm, kind)
				ask := func(keys []string, runs ...[]any) []any {
					reply, err := script.Run(t.Context(), client, keys, groupsOf(nil, runs...)...).Slice()
					require.NoError(t, err, note)
					require.Len(t, reply, 4*len(keys), note)
					var said []any
					for i := range keys {
						said = append(said, reply[4*i])
					}
					return said
				}
				var keys []string
				for i := range 6 {
					keys = append(keys, mateKey(i))
				}
				runs := [][]any{
					runOf(1, of[0].request(1)), alternativeTo(of[1].request(1), plain.request(1)), alternativeTo(of[2].request(1)),
					runOf(1, of[0].request(1)), alternativeTo(of[0].request(1)),
				}
				for _, want := range [][]any{
					{int64(1), int64(2), int64(2), int64(2), int64(1), int64(2)},
					{int64(0), int64(1), int64(1), int64(2), int64(0), int64(1)},
					{int64(0), int64(0), int64(0), int64(1), int64(0), int64(0)},
					{int64(0), int64(0), int64(0), int64(0), int64(0), int64(0)},
				} {
					require.Equal(t, want, ask(keys, runs...), note)
				}

				require.NoError(t, client.FlushAll(t.Context()).Err())
				require.NoError(t, client.Set(t.Context(), foreignKey, "none of ours", 0).Err())
				said := ask([]string{keys[0], foreignKey, keys[1], keys[2]}, runOf(1, plain.request(1)), runOf(1, of[0].request(1)), alternativeTo(of[1].request(1)), runOf(1, plain.request(1)))
				require.Equal(t, []any{int64(1), said[1], int64(2), int64(1)}, said, note)
				require.IsType(t, "", said[1], note)
				require.Zero(t, client.Exists(t.Context(), keys[1]).Val(), note)
			}
		}
	}
}
