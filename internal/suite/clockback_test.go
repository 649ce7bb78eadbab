package suite_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/dispatch"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/storetest"
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

// While a key is banned, nothing else asks about its ban.
func TestABanIsNotLongerAfterTheServersClockWasSetBack(t *testing.T) {
	for what, ask := range map[string]func(t *testing.T, b *ratelimit.Ban) ratelimit.Result{
		"Allow": func(t *testing.T, b *ratelimit.Ban) ratelimit.Result { return allow(t, b, "key") },
		"AllowUpTo": func(t *testing.T, b *ratelimit.Ban) ratelimit.Result {
			_, r, err := b.AllowUpTo(t.Context(), "key", 5)
			require.NoError(t, err)
			return r
		},
	} {
		t.Run(what, func(t *testing.T) {
			mini := redistest.Mini(t)
			s := onRedis(t, mini.Client(t))
			b, err := ratelimit.NewBan(newLimiter(t, "fixed_window", s, ratelimit.PerDay(1)), s, ratelimit.Penalty{Denials: 1, Within: time.Minute, For: time.Minute})
			require.NoError(t, err)
			mini.SetTime(start)
			require.True(t, allow(t, b, "key").Allowed)
			require.Equal(t, ratelimit.SourceBan, allow(t, b, "key").Source())
			for passed := time.Duration(0); passed < time.Minute; passed += 20 * time.Second {
				mini.SetTime(start.Add(passed - time.Hour))
				require.Equal(t, time.Minute-passed, peek(t, b, "key").RetryAfter)
				require.Equal(t, time.Minute-passed, ask(t, b).RetryAfter)
			}
			mini.SetTime(start.Add(time.Minute - time.Hour))
			require.NotEqual(t, ratelimit.SourceBan, peek(t, b, "key").Source())
		})
	}
}

// The limit that has denied nothing goes on from the server's time too.
func TestADeniedAllMovesAllOfItsLimits(t *testing.T) {
	for _, algorithm := range algorithms {
		mini := redistest.Mini(t)
		s := onRedis(t, mini.Client(t))
		minute := newLimiter(t, algorithm, s, ratelimit.PerMinute(2), ratelimit.WithName("minute"))
		both := all(t, minute, newLimiter(t, "token_bucket", s, ratelimit.PerHour(1)))
		mini.SetTime(start)
		require.True(t, allow(t, both, "key").Allowed)
		mini.SetTime(start.Add(-time.Hour))
		require.False(t, allow(t, both, "key").Allowed)
		mini.SetTime(start.Add(2*time.Minute - time.Hour))
		require.Equal(t, 2, peek(t, minute, "key").Remaining, algorithm)
		require.Zero(t, peek(t, minute, "key").ResetAfter, algorithm)
	}
}

// Every trace of the exact model, by each way that a call comes to a server. All ways reply, write
// and expire alike.
func TestTheServersClockIsSetBack(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	server := newWays(t)
	storetest.Run(t, func(_ testing.TB, clock func() time.Time) store.Store { return server.open(clock) },
		storetest.SetBack(), storetest.Traces(effort.Of(3, 20, 1_700)))
}

// wayServer is a Redis server by the test's clock. Its scripts read that, and keys expire by it.
type wayServer struct {
	t      *testing.T
	client *redis.Client

	mu     sync.Mutex // held during each call
	rules  map[*store.Rule][]way
	stores int
}

func newWays(t *testing.T) *wayServer {
	return &wayServer{t: t, client: patient(t), rules: map[*store.Rule][]way{}}
}

// prepare loads the scripts of a rule.
func (w *wayServer) prepare(rule *store.Rule) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.rules[rule] == nil {
		w.rules[rule] = waysOf(w.t, rule, besides(w.t, rule.Name))
		loadWays(w.t, w.client, w.rules[rule])
	}
}

// open returns an empty store.
func (w *wayServer) open(clock func() time.Time) *wayStore {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stores++
	return &wayStore{wayServer: w, clock: clock, prefix: fmt.Sprint("{script}", w.stores, " "), expiry: map[string]int64{}}
}

// wayStore has a key for each way.
type wayStore struct {
	*wayServer
	clock  func() time.Time
	prefix string
	expiry map[string]int64 // when keys expire, Unix ms

	reserved int64 // by the request that is decided
}

// Prepare implements [store.Store].
func (s *wayStore) Prepare(rule *store.Rule, _ store.Limit, _ bool) error {
	s.prepare(rule)
	return nil
}

// call makes a call by each way.
func (s *wayStore) call(ctx context.Context, op string, ns *store.Namespace, key string, l store.Limit, n int64, more ...any) (r store.Reply, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hi, lo := ns.ID()
	now, key := s.clock().UnixMicro(), fmt.Sprintf("%s%x%x %s", s.prefix, hi, lo, key)
	ways := s.rules[ns.Rule]
	var keys, lives []string
	for i := range ways {
		keys = append(keys, fmt.Sprint(key, " ", i))
		lives = append(lives, keys[i]+" ms")
	}
	pipe := s.client.Pipeline()
	pipe.Set(ctx, timeKey, now, 0)
	if expiry, expires := s.expiry[key]; expires && now/1000 > expiry || op == "reset" {
		pipe.Del(ctx, keys...)
		delete(s.expiry, key)
	}
	pipe.Del(ctx, lives...)
	if op == "reset" {
		_, err = pipe.Exec(ctx)
		return r, err
	}
	outcomes, args := make([]wayOutcome, len(ways)), callArgs(op, l, now, n, more...)
	if s.reserved > 0 {
		args[4] = fmt.Sprintf("%d+%d", n, s.reserved)
	}
	for i, w := range ways {
		outcomes[i].answer = w.ask(ctx, pipe, keys[i], args)
		outcomes[i].value = valueOf(ctx, pipe, ns.Rule, keys[i])
		outcomes[i].life = pipe.Get(ctx, lives[i])
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return r, fmt.Errorf("%w: %w", store.ErrStore, err)
	}
	for i, o := range outcomes {
		if o.err() != nil || o.String() != outcomes[0].String() {
			return r, fmt.Errorf("%s of %d %s: %v\n%s: %v", op, n, ways[0].name, outcomes[0], ways[i].name, o)
		}
	}
	if ms, err := outcomes[0].life.Int64(); err == nil {
		s.expiry[key] = now/1000 + ms
	}
	reply, err := outcomes[0].answer.cmd.Int64Slice()
	if err != nil {
		return r, fmt.Errorf("%w: %w", store.ErrStore, err)
	}
	return store.Reply{Outcome: store.AdmittedIf(reply[0] == 1), X: reply[1], Y: reply[2], Z: reply[3]}, nil
}

// wayOutcome is what a call of one way has replied, the value that it has left, and for how long if it
// has written that.
type wayOutcome struct {
	answer *asked
	value  *redis.Cmd
	life   *redis.StringCmd
}

func (o wayOutcome) err() error {
	_, err := o.answer.reply()
	return err
}

func (o wayOutcome) String() string {
	reply, err := o.answer.reply()
	return fmt.Sprintf("%v %v, %q for %s ms", reply, err, fmt.Sprint(o.value.Val()), o.life.Val())
}

// valueOf reads the value of a key.
func valueOf(ctx context.Context, pipe redis.Pipeliner, rule *store.Rule, key string) *redis.Cmd {
	switch {
	case rule.Held:
		return pipe.Do(ctx, "ZRANGE", key, 0, -1, "WITHSCORES")
	case rule.NewLog != nil:
		return pipe.Do(ctx, "LRANGE", key, 0, -1)
	}
	return pipe.Do(ctx, "GET", key)
}

// Decide implements [store.Store].
func (s *wayStore) Decide(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	one, of := requests[0], *s
	of.reserved, one.Reserved = one.Reserved, 0
	return dispatch.Decide(ctx, &of, nil, []store.Request{one}, replies)
}

// Take implements [store.Store].
func (s *wayStore) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	if l.Before() > 0 {
		return s.call(ctx, "within", ns, key, l, n, l.Before())
	}
	return s.call(ctx, "take", ns, key, l, n)
}

// TakeUpTo implements [store.Store].
func (s *wayStore) TakeUpTo(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	return s.call(ctx, "upto", ns, key, l, n)
}

// Peek implements [store.Store].
func (s *wayStore) Peek(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	return s.call(ctx, "look", ns, key, l, n)
}

// Overdraw implements [store.Store].
func (s *wayStore) Overdraw(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n, most int64) (store.Reply, error) {
	return s.call(ctx, "charge", ns, key, l, n, most)
}

// Refund implements [store.Store].
func (s *wayStore) Refund(ctx context.Context, ns *store.Namespace, key string, l store.Limit, c store.Receipt) error {
	over := 0
	if c.Overdrawn {
		over = 1
	}
	_, err := s.call(ctx, "refund", ns, key, l, c.N, c.At, c.Due, c.Rate, c.Period, over)
	return err
}

// Reset implements [store.Store].
func (s *wayStore) Reset(ctx context.Context, ns *store.Namespace, key string) error {
	_, err := s.call(ctx, "reset", ns, key, store.Limit{}, 0)
	return err
}

// Together implements [store.Store].
func (s *wayStore) Together(string, string) bool { return false }

// TakeAll implements [store.Store].
func (s *wayStore) TakeAll(context.Context, []store.Request, []store.Reply) error {
	return errors.ErrUnsupported
}
