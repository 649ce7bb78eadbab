package redisstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/carrier"
)

// replied returns calls of so many requests each, after a script of them all has answered reply.
func replied(reply string, sizes ...int) []call {
	calls := make([]call, len(sizes))
	g := bundle{op: operation{writing: new(carrier.Writing)}}
	for i, size := range sizes {
		calls[i].more = make([]request, size-1)
		g.calls, g.requests = append(g.calls, &calls[i]), g.requests+size
	}
	cmd := newMixed(context.Background(), nil, g.requests)
	cmd.reply.WriteString(reply)
	g.end(cmd)
	return calls
}

// Each call of a script has its own part of the reply, for all its requests, whatever is in the text of an error. Of a
// reply that breaks off a call has at most the error that is wholly there.
func TestEachCallHasItsPartOfTheReply(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	texts := []string{"E", "ERR no", "two\r\nlines\r\n", ":1\r\n", "$1\r\nE\r\n", "-", "*8\r\n"}
	for range 40 {
		n, requests := 1+rng.IntN(4), 0
		sizes := make([]int, n)
		for i := range sizes {
			sizes[i] = 1 + rng.IntN(3)*rng.IntN(2)
			requests += sizes[i]
		}
		reply, ends := fmt.Sprintf("*%d\r\n", 4*requests), make([]int, n)
		values, failed := make([][]int64, n), make([]string, n)
		for i := range n {
			var part []string
			for range 4 * sizes[i] {
				v := []int64{0, 1, -1, 10, rng.Int64(), -rng.Int64(), math.MaxInt64, math.MinInt64}[rng.IntN(8)]
				values[i], part = append(values[i], v), append(part, fmt.Sprintf(":%d\r\n", v))
			}
			if rng.IntN(3) == 0 {
				failed[i] = texts[rng.IntN(len(texts))]
				part[0] = fmt.Sprintf("$%d\r\n%s\r\n", len(failed[i]), failed[i])
			}
			for j, element := range part {
				r := reader{[]byte(element)}
				_, _, ok := r.next(':')
				require.True(t, ok, "%q", element)
				require.Empty(t, r.rest)
				if reply += element; j == 0 {
					ends[i] = len(reply)
				}
			}
		}
		for i, c := range replied(reply, sizes...) {
			if failed[i] != "" {
				require.Equal(t, refusal(failed[i]), c.err, "%q", reply)
				continue
			}
			require.NoError(t, c.err, "%q", reply)
			require.Equal(t, values[i], c.values, "%q", reply)
		}
		for whole := range len(reply) {
			for i, c := range replied(reply[:whole], sizes...) {
				if failed[i] != "" && ends[i] <= whole {
					require.Equal(t, refusal(failed[i]), c.err, "%q", reply[:whole])
				} else {
					require.ErrorIs(t, c.err, errReply, "%q", reply[:whole])
				}
			}
		}
	}
}

// A server or a proxy may answer anything. What is not a reply of this script is an error of each call, and no more.
func TestAReplyThatIsNotOneIsAnError(t *testing.T) {
	const number = ":7\r\n"
	elements := []string{
		"+OK\r\n", ":\r\n", ":x\r\n", ":1.5\r\n", ":99999999999999999999\r\n", ",1\r\n", "#t\r\n", "_\r\n", "*1\r\n", "!5\r\nERR a\r\n",
		"$0\r\n\r\n", "$-1\r\n", "$-9223372036854775808\r\n", "$9223372036854775807\r\n", "$9223372036854775806\r\n", "$99\r\nE\r\n", "$x\r\n",
	}
	for at := range 8 {
		for _, element := range append(elements, "$5\r\nERR a\r\n") {
			reply := "*8\r\n"
			for i := range 8 {
				if i == at {
					reply += element
				} else {
					reply += number
				}
			}
			for _, sizes := range [][]int{{1, 1}, {2}} {
				if at%(4*sizes[0]) == 0 && element[0] == '$' && element[1] == '5' {
					continue // that is one
				}
				for _, c := range replied(reply, sizes...) {
					require.ErrorIs(t, c.err, errReply, "%q", reply)
				}
			}
		}
	}
	for _, reply := range append(elements, "", "\r\n", "*8\r\n", "*-1\r\n", "*4\r\n:0\r\n:0\r\n:0\r\n:0\r\n", "*10\r\n", "*2\r\n", ":8\r\n"+number+number+number+number+number+number+number+number) {
		for _, c := range replied(reply, 1, 1) {
			require.ErrorIs(t, c.err, errReply, "%q", reply)
			if reply != "*8\r\n" {
				require.ErrorContains(t, c.err, "want a list of 8:")
			}
		}
	}
}

// An alternative that fails has its error in place of its first number, even if those before it were decided.
func TestAnAlternativeMayFailAfterOthers(t *testing.T) {
	for at, want := range map[int]string{4: "", 8: "element 8 ", 12: "", 13: "element 13 ", 14: "element 14 "} {
		calls := []*call{{}, {more: make([]request, 2)}}
		calls[1].more[1].orElse = true
		reply := "*16\r\n"
		for i := range 16 {
			if i == at {
				reply += "$5\r\nERR a\r\n"
			} else {
				reply += ":7\r\n"
			}
		}
		g := bundle{calls: calls, requests: 4}
		if err := g.read([]byte(reply)); want != "" {
			require.ErrorIs(t, err, errReply)
			require.ErrorContains(t, err, want)
		} else {
			require.NoError(t, err)
			require.NoError(t, calls[0].err)
			require.Equal(t, refusal("ERR a"), calls[1].err)
		}
	}
}

// A reply that go-redis takes for one may have a length that no text has.
func TestALengthThatNoTextHasIsNoPanic(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", Dialer: func(context.Context, string, string) (net.Conn, error) {
		ours, conn := net.Pipe()
		go func() {
			defer conn.Close()
			for in := bufio.NewReader(conn); ; {
				var words, size int
				if _, err := fmt.Fscanf(in, "*%d\r\n", &words); err != nil {
					return
				}
				reply := "-ERR unknown command\r\n"
				for range words {
					fmt.Fscanf(in, "$%d\r\n", &size)
					word := make([]byte, size+2)
					if _, _ = io.ReadFull(in, word); string(word) == "evalsha\r\n" {
						reply = "*8\r\n$9223372036854775807\r\n:0\r\n:0\r\n:0\r\n:0\r\n:0\r\n:0\r\n:0\r\n"
					}
				}
				_, _ = io.WriteString(conn, reply)
			}
		}()
		return ours, nil
	}})
	defer client.Close()
	s, err := New(client)
	require.NoError(t, err)
	b := s.Batch(store.NewNamespace(&store.Rule{Name: "one", Script: ScriptOf("")}, "test"))
	b.Take("k", store.Limit{Rate: 1, Period: 1, Burst: 1}, 1)
	b.Take("another", store.Limit{Rate: 1, Period: 1, Burst: 1}, 1)
	_, errs, _ := b.Make()
	require.ErrorIs(t, errs[0], store.ErrTimeout)
	require.ErrorContains(t, errs[0], "the reply cannot be parsed")
}

// Calls whose requests have the same rules are in one script, or in a few of which each is short for the server. A call
// has a script of its own if that cannot be shared, or if a server has refused one with several keys.
func TestWhichCallsShareAScript(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	scripts := []*script{{shared: true}, {shared: true}, {}}
	for range 40 {
		writing, refused := new(carrier.Writing), rng.IntN(4) == 0
		var want [][]*call
		requests := map[*call]int{} // in the script that a call begins
		var groups []bundle
		calls := make([]call, 1+rng.IntN(600))
	next:
		for i := range calls {
			c := &calls[i]
			c.script, c.unshared = scripts[rng.IntN(3)], rng.IntN(5) == 0
			c.more = make([]request, rng.IntN(3)*rng.IntN(2))
			if rng.IntN(100) == 0 {
				c.more = make([]request, mostTogether+rng.IntN(2)-1)
			}
			groups = join(groups, c, len(calls), refused, writing)
			together := c.script.shared && !c.unshared && !refused
			for at, calls := range want {
				first := calls[0]
				if together && !first.unshared && first.script == c.script && requests[first]+c.size() <= mostTogether {
					want[at] = append(calls, c)
					requests[first] += c.size()
					continue next
				}
			}
			want, requests[c] = append(want, []*call{c}), c.size()
		}
		require.Len(t, groups, len(want))
		for i := range groups {
			c := want[i][0]
			require.True(t, slices.Equal(want[i], groups[i].calls))
			require.Equal(t, requests[c], groups[i].requests)
			require.Same(t, writing, groups[i].op.writing)
			if !c.script.shared || c.unshared || refused {
				require.Equal(t, 1, cap(groups[i].calls), "no other can join it")
			}
			require.LessOrEqual(t, cap(groups[i].calls), mostTogether)
		}
	}
}

// A request of a script of several is asked what it would be asked alone, and by which rule it is. That is said once for
// a run of calls that differ only in their keys.
func TestEachRequestIsAskedWhatItIsAskedAlone(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	plain := unreached(t)
	clocked := unreached(t)
	clocked.clock = func() time.Time { return time.UnixMicro(1_234_567) }
	sc := newScript("text")
	rules := []*store.Rule{{Name: "a"}, {Name: "b"}}
	for range 60 {
		s, now := plain, any("")
		if rng.IntN(2) == 0 {
			s, now = clocked, int64(1_234_567)
		}
		calls, runs := make([]call, 1+rng.IntN(80)*rng.IntN(2)), 1+rng.IntN(3)
		var g bundle
		for i := range calls {
			c := &calls[i]
			if c.script = sc; i > 0 && rng.IntN(3) < runs {
				c.first, c.more = calls[i-1].first, slices.Clone(calls[i-1].more)
			} else {
				c.more = make([]request, rng.IntN(3)*rng.IntN(2))
				for j := range c.size() {
					*c.request(j) = randomRequest(rng, rules, c.size())
				}
			}
			for j := range c.size() {
				c.request(j).key = fmt.Sprint("k", rng.IntN(9))
			}
			g.calls, g.requests = append(g.calls, c), g.requests+c.size()
		}
		for name, text := range map[string]any{evalsha: sc.sha, eval: "text"} {
			cmd, err := g.command(t.Context(), s, name)
			require.NoError(t, err)
			got := cmd.Args()
			require.Equal(t, []any{name, text, g.requests}, got[:keyArg])
			require.Same(t, &g.op, got[keyArg+g.requests])
			if g.requests == 1 {
				r := &calls[0].first
				want := []any{r.key, &g.op, r.limit.Rate, r.limit.Period, r.limit.Burst, r.n}
				if s == clocked {
					want = append(want, now)
				}
				require.Equal(t, want, got[keyArg:])
				require.Equal(t, r.op, fmt.Sprint(got[keyArg+1]), "hooks see it")
				continue
			}
			require.Equal(t, "groups", fmt.Sprint(got[keyArg+g.requests]))
			require.Equal(t, now, got[keyArg+g.requests+1])
			keys, got := got[keyArg:keyArg+g.requests], got[keyArg+g.requests+2:]
			var last []any
			for i := 0; i < len(calls); {
				n, run := got[0].(int), got[1:2+5*got[1].(int)]
				require.Positive(t, n)
				require.NotEqual(t, last, run, "they are one run")
				for range n {
					c := &calls[i]
					want := []any{c.size()}
					for j := range c.size() {
						r := c.request(j)
						require.Equal(t, r.key, keys[0])
						what := fmt.Sprint(r.number, " ", r.op)
						want = append(want, strings.TrimSuffix(what, " take"), r.limit.Rate, r.limit.Period, r.limit.Burst, r.n)
						keys = keys[1:]
					}
					require.Equal(t, want, run)
					i++
				}
				last, got = run, got[1+len(run):]
			}
			require.Empty(t, got)
		}
	}
}

// randomRequest returns a request of a call with so many of them.
func randomRequest(rng *rand.Rand, rules []*store.Rule, of int) request {
	l := store.Limit{Rate: 1 + rng.Int64N(2), Period: 60_000_000, Burst: 3}
	n := 1 + rng.Int64N(2)
	ops := []string{"take", within("take", l.TurnBefore(1+rng.Int64N(2))), "look", "gate", "shadow"}
	if of == 1 {
		ops = []string{"take", ops[1], "look", "upto", fmt.Sprint("charge ", 1+rng.Int64N(2)),
			refund(store.Receipt{At: rng.Int64N(2), Due: 3, Rate: 1, Period: 5, N: n, Overdrawn: rng.IntN(2) == 0})}
	}
	number := rng.IntN(len(rules))
	return request{rule: rules[number], number: 1 + number*(len(takes)+2), op: ops[rng.IntN(len(ops))], limit: l, n: n}
}

// tell has a server answer a command: "" is what was asked for, and io.EOF the end of the connection. The reply to a
// request is its number four times.
func tell(cmd redis.Cmder, answer error) {
	m, several := cmd.(*mixed)
	var refused refusal
	switch {
	case several && errors.As(answer, &refused):
		m.reply.WriteString("-" + string(refused) + "\r\n")
	case answer != nil:
		cmd.SetErr(answer)
	default:
		values := make([]int64, 4*cmd.Args()[2].(int))
		for i := range values {
			values[i] = int64(i / 4)
		}
		if !several {
			cmd.(numbers).SetVal(values)
			return
		}
		fmt.Fprintf(&m.reply, "*%d\r\n", len(values))
		for _, v := range values {
			fmt.Fprintf(&m.reply, ":%d\r\n", v)
		}
	}
}

// grouped returns groups of so many calls, with a script each. The calls have a request each, and every third has two.
func grouped(sizes ...int) (groups []bundle) {
	writing := new(carrier.Writing)
	for i, n := range sizes {
		sc := newScript(fmt.Sprint("script ", i))
		sc.shared = true
		g := bundle{op: operation{writing: writing}}
		for j := range n {
			r := request{rule: new(store.Rule), number: 1, op: "take", key: "k", limit: store.Limit{Rate: 1, Period: 1, Burst: 1}, n: 1}
			c := &call{script: sc, first: r}
			if j%3 == 2 {
				c.more = []request{r}
			}
			g.calls, g.requests = append(g.calls, c), g.requests+c.size()
		}
		groups = append(groups, g)
	}
	return groups
}

// Scripts that the server does not have are sent again, as texts, and no others: those may have been charged. Calls
// whose script was refused for its keys go again by themselves. Each other call has the answer to its script.
func TestEachScriptOfATripIsAnswered(t *testing.T) {
	v := unreached(t).link.whole
	rng := rand.New(rand.NewPCG(7, 8))
	answers := []error{nil, nil, refusal("NOSCRIPT No matching script"), refusal("NOSCRIPT No matching script"),
		refusal("CROSSSLOT Keys in request"), refusal("NOPERM no"), refusal("OOM no"), io.EOF}
	ended, cancel := context.WithCancel(t.Context())
	cancel() // nobody would wait for a connection any more
	end := time.Now().Add(time.Hour)
	ctx := earlyDone{ended, end}
	for range 400 {
		sizes := make([]int, 1+rng.IntN(4))
		for i := range sizes {
			sizes[i] = 1 + rng.IntN(4)*rng.IntN(2)
		}
		groups := grouped(sizes...)
		all := append([]bundle(nil), groups...)
		early := rng.IntN(4) == 0
		if early {
			all[0].calls[0].err = io.ErrClosedPipe // it has failed before
		}
		told, missing := make([]error, len(all)), []int(nil)
		var last error
		runs := 0
		v.apart = time.Time{}
		twice, err := v.exec(ctx, groups, func(ctx context.Context, cmds []redis.Cmder) {
			deadline, _ := ctx.Deadline()
			require.Equal(t, end, deadline)
			require.Equal(t, runs > 0, ctx.Err() == nil, "there is a connection")
			runs++
			require.LessOrEqual(t, runs, 2)
			sent := missing
			if runs == 1 {
				for i := range all {
					sent = append(sent, i)
				}
			}
			missing = nil
			require.Len(t, cmds, len(sent))
			for j, i := range sent {
				sc := all[i].calls[0].script
				want := []any{evalsha, sc.sha}
				if runs == 2 {
					want = []any{eval, sc.text}
				}
				require.Equal(t, want, cmds[j].Args()[:2])
				last = answers[rng.IntN(len(answers))]
				if told[i] = last; runs == 1 && redis.HasErrorPrefix(last, "NOSCRIPT") {
					missing = append(missing, i)
				}
				tell(cmds[j], last)
			}
		})
		require.Equal(t, last, err)
		require.Empty(t, missing)
		require.Equal(t, runs == 2, twice)
		apart := false
		for i := range all {
			want := told[i]
			if len(all[i].calls) > 1 && (redis.HasErrorPrefix(want, "CROSSSLOT") || redis.HasErrorPrefix(want, "NOPERM")) {
				want, apart = errRefusedBundle, true
			}
			at := int64(0)
			for j, c := range all[i].calls {
				var values []int64
				for range c.size() {
					values = append(values, at, at, at, at)
					at++
				}
				if i == 0 && j == 0 && early {
					require.Equal(t, io.ErrClosedPipe, c.err)
					continue
				}
				require.Equal(t, want, c.err)
				if want == nil {
					require.Equal(t, values, c.values)
				}
			}
		}
		require.Equal(t, apart, v.apart.After(time.Now().Add(notTogether/2)))
		require.True(t, v.mu.TryLock())
		v.mu.Unlock()
	}
}

// A clock that cannot be read is an error of each call. Nothing is sent.
func TestWithoutATimeNothingIsSent(t *testing.T) {
	s := unreached(t)
	s.clock = func() time.Time { return time.Time{} }
	for _, sizes := range [][]int{{1}, {2}, {1, 2}, {2, 1}} {
		groups := grouped(sizes...)
		_, err := s.link.whole.exec(t.Context(), groups, func(context.Context, []redis.Cmder) { t.Error("sent") })
		require.ErrorIs(t, err, errReading)
		for _, g := range groups {
			for _, c := range g.calls {
				require.ErrorIs(t, c.err, errReading)
			}
		}
	}
	v := s.link.whole
	_, sent, err := v.alone(v.Begin(t.Context()), *grouped(1)[0].calls[0])
	require.ErrorIs(t, err, errReading)
	require.False(t, sent)
}

// inPlace is a hook in place of a server: what it returns is the error of the connection, or of the only command.
type inPlace func(ctx context.Context, cmds []redis.Cmder) error

func (inPlace) DialHook(redis.DialHook) redis.DialHook {
	return func(context.Context, string, string) (net.Conn, error) { return nil, io.EOF }
}

func (h inPlace) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return h(ctx, []redis.Cmder{cmd}) }
}

func (h inPlace) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return redis.ProcessPipelineHook(h)
}

// served returns a store whose server is a hook.
func served(t *testing.T, server inPlace, opts ...Option) *Store {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	client.AddHook(server)
	s, err := New(client, opts...)
	require.NoError(t, err)
	return s
}

// A call that goes alone is a command, and those of one rule are one command. A look is a command that charges nothing.
func TestWhatATripSends(t *testing.T) {
	for _, c := range []struct {
		sizes []int
		want  []any // number of keys of each command
	}{{nil, []any{"time"}}, {[]int{1}, []any{1}}, {[]int{2}, []any{2}}, {[]int{1, 2, 1}, []any{1, 2, 1}}} {
		var sent []any
		s := served(t, func(_ context.Context, cmds []redis.Cmder) error {
			for _, cmd := range cmds {
				if sent = append(sent, cmd.Args()[0]); sent[len(sent)-1] != "time" {
					sent[len(sent)-1] = cmd.Args()[2]
				}
			}
			return io.EOF
		})
		groups := grouped(c.sizes...)
		twice, err := s.link.whole.sendBundles(t.Context(), groups)
		require.Equal(t, io.EOF, err)
		require.False(t, twice)
		require.Equal(t, c.want, sent)
		for _, g := range groups {
			for _, c := range g.calls {
				require.Equal(t, io.EOF, c.err, "of a pipeline no command is told")
			}
		}
	}
}

// A trip for which the server lacks a script takes two round trips, so that it says nothing of how far the server is.
func TestATripThatSendsAScriptMeasuresNothing(t *testing.T) {
	for answer, measures := range map[refusal]bool{"NOSCRIPT No matching script": false, "ERR no": true} {
		s := served(t, func(_ context.Context, cmds []redis.Cmder) error {
			err := refusal("ERR no")
			if cmds[0].Name() == "evalsha" {
				err = answer
			}
			cmds[0].SetErr(err)
			return err
		})
		v := s.link.whole
		for range 10 {
			b := v.Begin(t.Context())
			require.NoError(t, v.Admit(&b))
			_, err := v.Do(b, *grouped(1)[0].calls[0])
			b.Leave()
			require.Equal(t, refusal("ERR no"), err)
		}
		require.Equal(t, measures, v.Stats().RoundTrip > 0, answer)
	}
}

func TestTheCarrierOfAStoreTakesItsRandomTimes(t *testing.T) {
	asked := 0
	s := served(t, nil, WithJitter(func(time.Duration) time.Duration { asked++; return 0 }))
	b := s.link.whole.Begin(t.Context())
	require.True(t, b.Again(&carrier.Failure{Again: true}))
	require.Equal(t, 1, asked)
}

// A hook may fail after some commands have their answers. Those are what their callers are told.
func TestAnAnswerCountsWhateverAHookReturns(t *testing.T) {
	for _, failed := range []error{nil, refusal("ERR no")} {
		for _, returned := range []error{nil, failed, io.EOF} {
			s := served(t, func(_ context.Context, cmds []redis.Cmder) error {
				tell(cmds[0], failed)
				tell(cmds[1], nil)
				return returned
			})
			groups := grouped(1, 2)
			_, _ = s.link.whole.sendBundles(t.Context(), groups)
			if failed == nil && returned != nil {
				continue // for all that is known, no command was answered
			}
			require.Equal(t, failed, groups[0].calls[0].err)
			for i := range 2 {
				require.NoError(t, groups[1].calls[i].err)
				require.Len(t, groups[1].calls[i].values, 4)
			}
		}
	}
}

// A hook may end its goroutine, as a test that fails does. That is a panic of the trip's callers, and the store goes on.
func TestAHookThatEndsItsGoroutineEndsOneTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ends := true
		s := served(t, func(_ context.Context, cmds []redis.Cmder) error {
			if ends {
				runtime.Goexit()
			}
			for _, cmd := range cmds {
				tell(cmd, nil)
			}
			return nil
		})
		ns := store.NewNamespace(&store.Rule{Name: "rule", Script: ScriptOf("")}, "name")
		takes := func() { _, _ = s.Take(t.Context(), ns, "k", store.Limit{}, 1) }
		for range 2 * mostConns {
			require.PanicsWithError(t, carrier.ErrExit.Error(), takes)
		}
		ends = false
		require.NotPanics(t, takes)
		synctest.Wait()
		require.Zero(t, s.Trips())
	})
}

// Each trip gives its connection back, and uses one that is free, so there are never more than trips under way at once.
func TestTripsUseConnectionsAgain(t *testing.T) {
	for _, hooks := range []bool{false, true} {
		m := redistest.Mini(t)
		client := redis.NewClient(&redis.Options{Addr: m.Addr(), ContextTimeoutEnabled: hooks})
		t.Cleanup(func() { _ = client.Close() })
		s, err := New(client, WithTimeout(time.Minute))
		require.NoError(t, err)
		v := s.link.whole
		for range 3 {
			groups := grouped(1, 1, 2)
			for i := range groups {
				sc := newScript(ScriptOf(fmt.Sprint("return {1, 0, 0, ", i, "}"))(nil))
				for _, c := range groups[i].calls {
					c.script = sc
				}
			}
			_, err := v.sendBundles(t.Context(), groups)
			require.NoError(t, err)
			require.Equal(t, []uint32{1, 1}, []uint32{client.PoolStats().TotalConns, client.PoolStats().IdleConns})
			require.Equal(t, []int64{1, 0, 0, 1}, groups[1].calls[0].values)
		}
		for range 3 {
			_, end := v.conn()
			_, last := v.conn()
			require.Empty(t, v.clones, "none is used by two")
			end()
			last()
		}
		if !hooks {
			require.Len(t, v.clones, 2)
			require.NotSame(t, v.clones[0], v.clones[1])
		}
		require.True(t, v.mu.TryLock())
		v.mu.Unlock()
	}
}

// streamed provides the same credentials to each connection.
type streamed struct{ auth.Credentials }

func (s streamed) Subscribe(auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	return s.Credentials, func() error { return nil }, nil
}

// A client whose credentials are streamed, as those of Entra ID are, also logs in for a trip of several scripts, and for Ready.
func TestTripsWithStreamedCredentials(t *testing.T) {
	for _, hooks := range []bool{false, true} {
		m := redistest.Mini(t)
		m.RequireUserAuth("user", "secret")
		client := redis.NewClient(&redis.Options{
			Addr: m.Addr(), ContextTimeoutEnabled: hooks, StreamingCredentialsProvider: streamed{auth.NewBasicCredentials("user", "secret")},
		})
		t.Cleanup(func() { _ = client.Close() })
		s, err := New(client, WithTimeout(time.Minute))
		require.NoError(t, err)
		groups := grouped(1, 2)
		for i := range groups {
			for _, c := range groups[i].calls {
				c.script = newScript(ScriptOf("return {1, 0, 0, 0}")(nil))
			}
		}
		_, err = s.link.whole.sendBundles(t.Context(), groups)
		require.NoError(t, err)
		require.Equal(t, []int64{1, 0, 0, 0}, groups[1].calls[1].values)
		require.NoError(t, s.Ready(t.Context()))
	}
}

// unreached returns a store whose server is not there.
func unreached(t testing.TB) *Store {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // by name it would be looked up, which a bubble cannot
	t.Cleanup(func() { _ = client.Close() })
	s, err := New(client)
	require.NoError(t, err)
	return s
}

func TestAPoolHasNoMoreConnectionsThanItMay(t *testing.T) {
	for most, want := range map[int]int{0: 10, 1: 1, 5: 5, 20: 10} {
		client := redis.NewClient(&redis.Options{PoolSize: 10, MaxActiveConns: most})
		require.Equal(t, want, poolSize(client))
		require.NoError(t, client.Close())
	}
}

func TestOnlyARenewalRenews(t *testing.T) {
	slots := store.NewNamespace(&store.Rule{Held: true}, "slots")
	require.True(t, renews(slots, store.Limit{}.TurnBefore(1)))
	require.False(t, renews(slots, store.Limit{}))
	require.False(t, renews(store.NewNamespace(new(store.Rule), "rate"), store.Limit{}.TurnBefore(1)))
}

func TestARefusalAllocatesNothing(t *testing.T) {
	s, ns, ctx := unreached(t), store.NewNamespace(&store.Rule{Name: "rule"}, "name"), context.Background()
	s.Warmed(1, time.Microsecond)
	s.Fill()
	allocs := testing.AllocsPerRun(500, func() {
		if _, err := s.Take(ctx, ns, "k", store.Limit{}, 1); !errors.Is(err, store.ErrOverloaded) {
			t.Fatal(err)
		}
	})
	require.Less(t, allocs, 0.1) // a timer of the process may run
	require.EqualValues(t, 1<<14, s.Stats().UnderWay)
	require.EqualValues(t, 502, s.Stats().Overloaded)
}

func BenchmarkRefused(b *testing.B) {
	s, ns, ctx := unreached(b), store.NewNamespace(&store.Rule{Name: "rule"}, "name"), context.Background()
	s.Warmed(1, time.Microsecond)
	s.Fill()
	b.ReportAllocs()
	for b.Loop() {
		_, _ = s.Take(ctx, ns, "k", store.Limit{}, 1)
	}
}
