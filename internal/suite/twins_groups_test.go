package suite_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/store"
)

// Some calls, each a group of its own, decide and write as they do one after the other. Two keys of three are in
// the same state, and are asked alike: these calls are one run, in which there may be one that fails.
func TestTheScriptOfABatchIsTheTwinOfItsCalls(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	client := patient(t)
	for _, algorithm := range append([]string{"ban"}, algorithms...) {
		rule := ruleOf(t, algorithm)
		_, general := halves(t, rule.Script([]*store.Rule{rule}))
		scripts := []*redis.Script{noted(rule.Script([]*store.Rule{rule})), noted(general)}
		for _, script := range scripts {
			require.NoError(t, script.Load(t.Context(), client).Err())
		}
		require.NoError(t, client.Set(t.Context(), foreignKey, "none of ours", 0).Err())
		rng := anew(9, 10)
		for range effort.Of(50, 100, 1000) {
			now, seed, mates := anyTime(rng), rng.Uint64(), []called{}
			for i := range 3 {
				own := rand.New(rand.NewPCG(seed, uint64(i/2)))
				require.NoError(t, client.Del(t.Context(), mateKey(i), mateKey(i)+" ms", mateKey(i)+" lives").Err())
				if algorithm == "sliding_log" {
					mates = append(mates, &logTwin{rule: rule, rng: own, limits: []store.Limit{{Rate: 5, Period: 1_234_567}, {Rate: 70, Period: 2e6}}, still: true, now: now, log: rule.NewLog(store.State{})})
					continue
				}
				w := &twin{rule: rule, rng: own, limits: twinLimits(algorithm), still: true}
				plantKey(t, client, mateKey(i), w, now)
				mates, now = append(mates, w), max(now, w.now)
			}
			for range 4 {
				wait := int64(0)
				for _, w := range mates {
					wait = w.waits(now)
				}
				now = min(now+wait, 5e15)
				requireBatch(t, client, scripts[rng.IntN(2)], mates, rng, now, rng.IntN(2) == 0)
			}
		}
	}
}

// mate is one of several twins.
type mate interface {
	// kept are what stands behind the key in the names of what a server has of a twin, and what that is.
	kept() (names []string, values []any)
}

// called is a twin that is called at times that are not its own.
type called interface {
	mate
	waits(now int64) int64 // how much later the next call comes
	callAt(now int64, callers bool) twinCall
}

// mateKey is the key of the i-th of several twins.
func mateKey(i int) string { return fmt.Sprint("{script}", i) }

// plantKey puts a state of w into key, of now or a little earlier.
func plantKey(t *testing.T, client *redis.Client, key string, w *twin, now int64) {
	t.Helper()
	require.NoError(t, client.Set(t.Context(), key, w.plant(now).plant, 0).Err())
	require.NoError(t, client.Del(t.Context(), key+" ms").Err())
}

// foreignKey has a value that no script has written.
const foreignKey = "{script}foreign"

// notOurs is what a script of groups says of foreignKey, if rule is asked for it.
func notOurs(rule *store.Rule) string {
	if rule.NewLog != nil {
		return "WRONGTYPE Operation against a key holding the wrong kind of value"
	}
	return "ratelimit: the value of the key is not a state"
}

// failed are the replies to a group of so many requests that failed.
func failed(text string, size int) []any {
	return append([]any{text}, slices.Repeat([]any{int64(0)}, 4*size-1)...)
}

// requireBatch makes a few calls of the twins at once.
func requireBatch(t *testing.T, client *redis.Client, script *redis.Script, mates []called, rng *rand.Rand, now int64, callers bool) {
	t.Helper()
	clock, server := []any{}, now
	if callers {
		clock, server = []any{now}, now-behind
	}
	runs, keys, want := [][]any{}, []string{}, []any{}
	for range 1 + rng.IntN(5) {
		run := [][]int{{0, 1}, {0, -1, 1}, {2}, {2}}[rng.IntN(4)]
		var of []any
		for _, i := range run {
			if i < 0 {
				rule := ruleOfMate(mates[0])
				keys, want = append(keys, foreignKey), append(want, failed(notOurs(rule), 1)...)
				continue
			}
			c := mates[i].callAt(now, callers)
			of = c.args
			switch keys = append(keys, mateKey(i)); {
			case c.fails:
				want = append(want, failed("ratelimit: the clocks of server and caller differ by more than two windows", 1)...)
			case c.reply == nil:
				want = append(want, int64(0), int64(0), int64(0), int64(0))
			default:
				want = append(want, c.reply...)
			}
		}
		runs = append(runs, runOf(len(run), questionOf(of).request(1)))
	}
	args := groupsOf(clock, runs...)
	given := append([]any{"none"}, args[1:]...)
	require.Empty(t, script.EvalSha(t.Context(), client, keys, given...).Val(), "a batch that was given up")
	kept := make(map[string]mate)
	for i, w := range mates {
		kept[mateKey(i)] = w
	}
	fails := ""
	if text, ok := want[0].(string); ok && len(keys) == 1 {
		fails = text
	}
	requireKeys(t, client, script, kept, server, keys, args, want, fails)
}

func ruleOfMate(w mate) *store.Rule {
	if log, ok := w.(*logTwin); ok {
		return log.rule
	}
	return w.(*twin).rule
}

// ruleOf is that of an algorithm, or of bans.
func ruleOf(t *testing.T, algorithm string) *store.Rule {
	t.Helper()
	p := new(prepared)
	if algorithm == "ban" {
		_, err := ratelimit.NewBan(inMemory(t, "fixed_window", ratelimit.PerHour(1)), p, ratelimit.Penalty{Denials: 1, Within: time.Second, For: time.Second})
		require.NoError(t, err)
	} else {
		newLimiter(t, algorithm, p, ratelimit.PerHour(1))
	}
	return p.rule
}

// Groups of several keys, each of any rule: all that are asked for events are charged as the Go functions do, or
// none. Beside them are shadows, looks, gates, what is charged whether it fits or not, and requests that reserve
// events. Some groups are alternatives to the one before. Groups of which one key is not ours leave all as it is, and
// the others go on.
func TestTheScriptOfSeveralKeysIsTheTwinOfTheirFunctions(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	client := patient(t)
	var rules []*store.Rule
	for _, algorithm := range []string{"fixed_window", "sliding_window", "token_bucket", "leaky_bucket", "sliding_log"} {
		rules = append(rules, ruleOf(t, algorithm))
	}
	require.NoError(t, client.Set(t.Context(), foreignKey, "none of ours", 0).Err())
	rng := anew(7, 8)
	for _, rules := range [][]*store.Rule{rules[:4], rules, rules[4:]} {
		_, general := halves(t, rules[0].Script(rules))
		scripts := []*redis.Script{noted(rules[0].Script(rules)), noted(general)}
		for _, script := range scripts {
			require.NoError(t, script.Load(t.Context(), client).Err())
		}
		for range effort.Of(80, 300, 2000) {
			now := anyTime(rng)
			var sets [2][]member
			for i := range 1 + rng.IntN(4) {
				number := rng.IntN(len(rules))
				for of := range sets {
					key := memberKey(of, i)
					require.NoError(t, client.Del(t.Context(), key, key+" ms", key+" lives").Err())
					if rule := rules[number]; rule.NewLog != nil {
						limits := []store.Limit{{Rate: 5, Period: 60e6}, {Rate: 3, Period: 1_234_567}, {Rate: 70, Period: 3600e6}}
						sets[of] = append(sets[of], &logTwin{rule: rule, number: number + 1, rng: rng, limits: limits, log: rule.NewLog(store.State{})})
					} else {
						w := &twin{rule: rule, number: number + 1, rng: rng, limits: twinLimits(rule.Name)}
						plantKey(t, client, key, w, now)
						sets[of], now = append(sets[of], w), max(now, w.now)
					}
				}
			}
			for range 7 {
				now = min(now+sets[rng.IntN(2)][rng.IntN(len(sets[0]))].waits(now), 5e15)
				requireGroups(t, client, scripts[rng.IntN(2)], sets, rng, now)
			}
		}
	}
}

// member is one of a group.
type member interface {
	mate
	waits(now int64) int64
	ask(other bool) (number int, l store.Limit, n int64) // any limit, if other
	heard(l store.Limit, now int64, callers bool) bool   // or no window that the caller knows is that of the decision
	plan(op string, l store.Limit, now, n, reserved int64, callers bool) (r store.Reply, write func(charge bool))
}

func memberKey(set, i int) string { return mateKey(10*set + i) }

// requireGroups asks for a few groups of two sets of twins at once.
func requireGroups(t *testing.T, client *redis.Client, script *redis.Script, sets [2][]member, rng *rand.Rand, now int64) {
	t.Helper()
	callers, plain, size := rng.IntN(2) == 0, rng.IntN(3) > 0, len(sets[0])
	runs, keys, want, fails, admitted := [][]any{}, []string{}, []any{}, "", false
	for range 1 + rng.IntN(4) {
		ops, limits, ns, requests := make([]string, size), make([]store.Limit, size), make([]int64, size), make([][]any, size)
		reserves := make([]int64, size)
		for i, w := range sets[0] {
			number, l, n := w.ask(!plain && rng.IntN(4) == 0)
			if !w.heard(l, now, callers) || !sets[1][i].heard(l, now, callers) {
				l = twinLimits("fixed_window")[0]
			}
			op := "take"
			if !plain {
				op = []string{"take", "take", "take", "shadow", "look", "gate", "upto", "charge"}[rng.IntN(8)]
			}
			if _, ok := w.(*logTwin); ok && op == "charge" { // it tells the time of one only as it is written
				op = "take"
			}
			q := questionOf(callArgs("take", l, now, n))
			switch q.what = op; {
			case op == "charge":
				q.what += fmt.Sprint(" ", mostOf(ruleOfMate(w), l))
			case op != "upto" && rng.IntN(10) == 0:
				l = l.TurnBefore(1 + rng.Int64N(2*l.Period))
				q.what += fmt.Sprint(" ", l.Before())
			}
			if op != "charge" && rng.IntN(4) == 0 {
				reserves[i] = 1 + rng.Int64N(max(1, l.Rate/(1+rng.Int64N(9))))
				q.limit[3] = fmt.Sprintf("%d+%d", n, reserves[i])
			}
			ops[i], limits[i], ns[i], requests[i] = op, l, n, q.request(number)
		}
		run, alternative := [][]int{{0}, {1}, {-1}, {0, 1}, {0, -1, 1}}[rng.IntN(5)], len(runs) > 0 && rng.IntN(2) == 0
		if alternative {
			run = run[:1]
			runs = append(runs, alternativeTo(requests...))
		} else {
			runs = append(runs, runOf(len(run), requests...))
		}
		for _, of := range run {
			if alternative && admitted {
				for i := range size {
					keys, want = append(keys, memberKey(max(of, 0), i)), append(want, int64(2), int64(0), int64(0), int64(0))
				}
				continue
			}
			if admitted = true; of < 0 { // what failed has no alternative
				bad := rng.IntN(size)
				for i := range size {
					if i == bad {
						keys = append(keys, foreignKey)
					} else {
						keys = append(keys, memberKey(0, i))
					}
				}
				fails = notOurs(ruleOfMate(sets[0][bad]))
				want = append(want, failed(fails, size)...)
				continue
			}
			all, writes := true, []func(all bool){}
			for i, w := range sets[of] {
				op := ops[i]
				r, write := w.plan(op, limits[i], now, ns[i], reserves[i], callers)
				keys, want = append(keys, memberKey(of, i)), append(want, twinReply(r)...)
				switch op {
				case "take", "gate", "upto":
					all = all && r.OK()
				}
				if op != "look" {
					writes = append(writes, func(all bool) {
						if all && op != "gate" || op != "charge" && (op != "gate" || !r.OK()) {
							write(all)
						}
					})
				}
			}
			for _, write := range writes {
				write(all)
			}
			admitted = all
		}
	}
	clock, server := []any{}, now
	if callers {
		clock, server = []any{now}, now-behind
	}
	if len(keys) > size {
		fails = ""
	}
	kept := make(map[string]mate)
	for of, set := range sets {
		for i, w := range set {
			kept[memberKey(of, i)] = w
		}
	}
	requireKeys(t, client, script, kept, server, keys, groupsOf(clock, runs...), want, fails)
}

// requireKeys asks a script, and wants these replies, or an error if it fails. And it wants all keys as the twins
// have them.
func requireKeys(t *testing.T, client *redis.Client, script *redis.Script, mates map[string]mate, server int64, keys []string, args, want []any, fails string) {
	t.Helper()
	ctx := t.Context()
	var reply *redis.Cmd
	values := make(map[string]*redis.SliceCmd)
	_, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Set(ctx, timeKey, server, 0)
		reply = p.EvalSha(ctx, script.Hash(), keys, args...)
		for key, w := range mates {
			names, _ := w.kept()
			values[key] = p.MGet(ctx, key+names[0], key+names[1])
		}
		return nil
	})
	if fails != "" {
		require.ErrorContains(t, err, fails, "%v", args)
	} else {
		require.NoError(t, err, "%v", args)
		require.Equal(t, want, reply.Val(), "%v", args)
	}
	for key, w := range mates {
		kept := values[key].Val()
		for i := range kept {
			if kept[i] == nil {
				kept[i] = ""
			}
		}
		_, own := w.kept()
		require.Equal(t, own, kept, "%s of %v", key, args)
	}
}
