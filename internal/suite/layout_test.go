package suite_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// layoutFiles has a file of stored values for each algorithm.
const layoutFiles = "internal/suite/testdata/layout/%s.json"

// stored is what calls have left on Redis, and what must come of it.
type stored struct {
	Name  string
	Limit string            // of a ban: how many denials begin one, and within which time
	As    string            `json:",omitempty"` // the name of the limit
	User  string            // the user's key
	Clock time.Time         // to which the times of the calls are added
	Wrote []string          // the calls, such as "2s take 1": see player.call
	Key   string            // the Redis key, of a store with the prefix "rl"
	TTL   string            // after the last of the calls
	Value [][]byte          // a text; the blocks of a list; members of a sorted set, each before its score
	Next  map[string]string // a call on this value, and its answer
}

// What is on Redis outlives the build that has written it, and builds of two releases run side
// by side while a fleet is updated. So what is stored, under which key and for how long, stays as the
// files in testdata/layout have it: calls still write these bytes, and calls on these bytes decide
// as they did. A batch decides as its calls alone: the conformance suite has that.
//
// To add cases, or an algorithm, add to layoutCases and run
//
//	go test -C internal/suite -run StoredLayoutsStay -update
//
// It never changes a case that is there. If a layout must change: count up the layout of package
// redisstore and of cmd/ratelimit, which is in every key, so that no build reads what the other
// has written. All counts then begin anew, which the CHANGELOG says first. Remove the files, and write them
// with -update.
func TestStoredLayoutsStay(t *testing.T) {
	t.Parallel()
	effort.OneGoroutine(t)
	client := redistest.Start(t).Client(t)
	for _, algorithm := range append(slices.Clone(algorithms), "ban", inflight.Algorithm) {
		t.Run(algorithm, func(t *testing.T) {
			if *update {
				addCases(t, client, algorithm)
			}
			cases := readCases(t, algorithm)
			require.Greater(t, len(cases), 4)
			for _, c := range cases {
				requireStored(t, newPlayer(t, client, algorithm, c))
			}
		})
	}
}

func requireStored(t *testing.T, p *player) {
	t.Helper()
	c := p.stored
	require.NotEmpty(t, c.Next, c.Name)
	ttl, longer := p.write()
	require.Equal(t, c.Value, p.value(), "%s: %s: the layout has changed, or the time in it", p.algorithm, c.Name)
	want, err := time.ParseDuration(c.TTL)
	require.NoError(t, err)
	require.LessOrEqual(t, ttl, want, "%s: %s: the TTL", p.algorithm, c.Name)
	require.GreaterOrEqual(t, longer, want, "%s: %s: the TTL", p.algorithm, c.Name)
	for _, call := range slices.Sorted(maps.Keys(c.Next)) {
		p.plant(want)
		require.Equal(t, c.Next[call], p.answer(call), "%s: %s: %s", p.algorithm, c.Name, call)
	}
}

func readCases(t *testing.T, algorithm string) (cases []stored) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf(layoutFiles, algorithm))
	if *update && errors.Is(err, os.ErrNotExist) {
		return nil
	}
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &cases))
	return cases
}

// addCases plays the cases that the file of an algorithm does not have, and adds what they leave.
func addCases(t *testing.T, client *redis.Client, algorithm string) {
	t.Helper()
	cases := readCases(t, algorithm)
	for _, c := range layoutCases()[algorithm] {
		if slices.ContainsFunc(cases, func(old stored) bool { return old.Name == c.Name }) {
			continue
		}
		p := newPlayer(t, client, algorithm, c.stored)
		ttl, longer := p.write()
		for ttl != longer { // until the clock of ms has stood still meanwhile
			ttl, longer = p.write()
		}
		p.TTL, p.Value = ttl.String(), p.value()
		p.Next = map[string]string{}
		for _, call := range c.calls(algorithm) {
			p.plant(ttl)
			p.Next[call] = p.answer(call)
		}
		cases = append(cases, p.stored)
	}
	text, err := json.MarshalIndent(cases, "", "\t")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(fmt.Sprintf(layoutFiles, algorithm), append(text, '\n'), 0o644))
}

// player makes calls on one key.
type player struct {
	stored
	t         *testing.T
	client    *redis.Client
	algorithm string
	now       time.Time
	limiter   ratelimit.Limiter
	both      *ratelimit.All // limiter and another
	charged   []ratelimit.Result
}

type otherLimit struct{}

func newPlayer(t *testing.T, client *redis.Client, algorithm string, c stored) *player {
	t.Helper()
	p := &player{stored: c, t: t, client: client, algorithm: algorithm}
	s := onRedis(t, client, redisstore.WithPrefix("rl"), redisstore.WithLabel("exports"), redisstore.WithClock(func() time.Time { return p.now }))
	l, err := ratelimit.ParseLimit(c.Limit)
	require.NoError(t, err)
	p.limiter, err = p.newLimiter(s, l)
	require.NoError(t, err)
	if algorithm != "ban" { // which is around another limiter
		p.both = all(t, p.limiter, newLimiter(t, "token_bucket", s, ratelimit.PerHour(1e6)))
	}
	return p
}

func (p *player) newLimiter(s store.Store, l ratelimit.Limit) (ratelimit.Limiter, error) {
	opts := []ratelimit.Option{ratelimit.WithLimitFunc(func(ctx context.Context, _ string) (ratelimit.Limit, error) {
		if other, ok := ctx.Value(otherLimit{}).(ratelimit.Limit); ok {
			return other, nil
		}
		return l, nil
	})}
	if p.As != "" {
		opts = append(opts, ratelimit.WithName(p.As))
	}
	switch p.algorithm {
	case "ban":
		penalty := ratelimit.Penalty{Denials: l.Rate, Within: l.Period, For: 30 * time.Minute, Most: 100 * time.Minute}
		return ratelimit.NewBan(ratelimittest.Static(ratelimit.Result{Allowed: true}, nil), s, penalty)
	case inflight.Algorithm:
		return inflight.New(s, l.Rate, l.Period, opts...)
	}
	return ratelimit.New(p.algorithm, s, l, opts...)
}

// write makes the calls that wrote the value, and returns between what the TTL lies that they have set.
func (p *player) write() (atLeast, atMost time.Duration) {
	p.t.Helper()
	require.NoError(p.t, p.client.FlushAll(p.t.Context()).Err())
	p.charged = nil
	last := len(p.Wrote) - 1
	for keepsTTL.MatchString(p.Wrote[last]) {
		last--
	}
	for i, call := range p.Wrote {
		before := p.serverTime(i == last)
		r, _, err := p.call(call)
		require.NoError(p.t, err, "%s: %s: %s", p.algorithm, p.Name, call)
		p.charged = append(p.charged, r)
		if i == last {
			require.True(p.t, r.Allowed || p.algorithm == "ban", "%s: %s: a denial sets no TTL", p.algorithm, p.Name)
			atLeast = p.ttl()
			atMost = atLeast + p.serverTime(true).Sub(before)
		}
	}
	left := p.ttl()
	require.Positive(p.t, left)
	require.LessOrEqual(p.t, left, atMost)
	return atLeast, atMost
}

// keepsTTL matches calls that set none.
var keepsTTL = regexp.MustCompile(` (refund|back) `)

// ttl is that of the only key that the calls have written.
func (p *player) ttl() time.Duration {
	p.t.Helper()
	keys, err := p.client.Keys(p.t.Context(), "*").Result()
	require.NoError(p.t, err)
	require.Len(p.t, keys, 1)
	if p.Key == "" {
		p.Key = keys[0]
	}
	require.Equal(p.t, p.Key, keys[0])
	ttl, err := p.client.PTTL(p.t.Context(), p.Key).Result()
	require.NoError(p.t, err)
	return ttl
}

// serverTime is the server's if it is asked for, in whole ms as for keys that expire.
func (p *player) serverTime(ask bool) time.Time {
	p.t.Helper()
	if !ask {
		return time.Time{}
	}
	now, err := p.client.Time(p.t.Context()).Result()
	require.NoError(p.t, err)
	return now.Truncate(time.Millisecond)
}

// holder is who holds a slot, as this process writes it.
var holder = regexp.MustCompile(` \S+:\d+:exports$`)

// value is what the key has.
func (p *player) value() (value [][]byte) {
	p.t.Helper()
	ctx := p.t.Context()
	add := func(s string) { value = append(value, []byte(s)) }
	switch p.algorithm {
	case "sliding_log":
		for _, block := range p.client.LRange(ctx, p.Key, 0, -1).Val() {
			add(block)
		}
	case inflight.Algorithm:
		for _, z := range p.client.ZRangeWithScores(ctx, p.Key, 0, -1).Val() {
			add(holder.ReplaceAllString(z.Member.(string), " web-3:4711:exports"))
			add(strconv.FormatFloat(z.Score, 'f', 0, 64))
		}
	default:
		add(p.client.Get(ctx, p.Key).Val())
	}
	return value
}

// plant puts the value that was stored into the key, and nothing else into the store.
func (p *player) plant(ttl time.Duration) {
	p.t.Helper()
	ctx := p.t.Context()
	pipe := p.client.TxPipeline()
	pipe.FlushAll(ctx)
	switch p.algorithm {
	case "sliding_log":
		for _, block := range p.Value {
			pipe.RPush(ctx, p.Key, block)
		}
	case inflight.Algorithm:
		for pair := range slices.Chunk(p.Value, 2) {
			pipe.Do(ctx, "ZADD", p.Key, pair[1], pair[0])
		}
	default:
		pipe.Set(ctx, p.Key, p.Value[0], 0)
	}
	pipe.PExpire(ctx, p.Key, ttl)
	_, err := pipe.Exec(ctx)
	require.NoError(p.t, err)
}

// answer is what a call says, and then a look, which reads what the call has written.
func (p *player) answer(call string) string {
	p.t.Helper()
	r, text, err := p.call(call)
	require.NoError(p.t, err, "%s: %s: %s", p.algorithm, p.Name, call)
	if text == "" {
		text = said(r)
	}
	after, err := p.limiter.Peek(p.t.Context(), p.User)
	require.NoError(p.t, err)
	return text + "; then " + said(after)
}

func said(r ratelimit.Result) string {
	text := "denied"
	if r.Allowed {
		text = "allowed"
	}
	text += fmt.Sprintf(", %d of %d left, retry %v, reset %v", r.Remaining, r.Limit, r.RetryAfter, r.ResetAfter)
	if r.Delay > 0 {
		text += fmt.Sprint(", delay ", r.Delay)
	}
	return text
}

// call makes a call such as
//
//	1s take 2 under 20/m      under this limit, of a limit function
//	1s within 2 of 30s        if its turn comes in that time
//	1s refund 1 of 0          one of the events that the first call has charged
//	1s together 2             decided together with another limit
//
// at that time. text is its answer if it is not just the Result.
func (p *player) call(call string) (r ratelimit.Result, text string, err error) {
	f := strings.Fields(call)
	after, err := time.ParseDuration(f[0])
	require.NoError(p.t, err)
	n, err := strconv.Atoi(f[2])
	require.NoError(p.t, err)
	p.now = p.Clock.Add(after)
	ctx, of := p.t.Context(), ""
	if len(f) > 3 {
		if of = strings.Join(f[4:], " "); f[3] == "under" {
			other, err := ratelimit.ParseLimit(of)
			require.NoError(p.t, err)
			ctx = context.WithValue(ctx, otherLimit{}, other)
		}
	}
	charged := func() ratelimit.Result {
		i, err := strconv.Atoi(of)
		require.NoError(p.t, err)
		return p.charged[i]
	}
	switch what := f[1]; what {
	case "take":
		r, err = p.limiter.AllowN(ctx, p.User, n)
	case "peek":
		r, err = p.limiter.Peek(ctx, p.User)
	case "upto":
		_, r, err = ratelimit.AllowUpTo(ctx, p.limiter, p.User, n)
		text = fmt.Sprintf("%d charged, %s", r.Charged(), said(r))
	case "charge":
		r, err = ratelimit.Charge(ctx, p.limiter, p.User, n)
	case "within":
		d, errOf := time.ParseDuration(of)
		require.NoError(p.t, errOf)
		r, err = ratelimit.AllowWithin(ctx, p.limiter, p.User, n, d)
	case "together":
		r, err = p.both.AllowN(ctx, p.User, n)
		text = said(r.Parts()[0].Result)
	case "refund":
		text, err = "given back", p.limiter.Refund(ctx, p.User, charged(), n)
	case "strike":
		r, err = p.limiter.(*ratelimit.Ban).Strike(ctx, p.User, n)
	case "renew":
		r, err = p.limiter.(*ratelimit.Custom).Renew(ctx, p.User, charged())
	case "back": // as the server's own clock does, by µs: see the number shift in slidinglog.lua
		last := []byte(p.client.LIndex(ctx, p.Key, -1).Val())
		binary.BigEndian.PutUint64(last[6*8:], math.Float64bits(-float64(n)))
		err = p.client.LSet(ctx, p.Key, -1, last).Err()
	default:
		require.Fail(p.t, "no such call", call)
	}
	return r, text, err
}

// layoutCase is a case to be written.
type layoutCase struct {
	stored
	early, late string   // when the next calls come
	other       []string // limits that they may come under
}

// calls are those that come next: all of them early, and a few late.
func (c layoutCase) calls(algorithm string) (calls []string) {
	early := []string{"peek 1", "take 1", "take 4", "upto 7", "charge 3", "together 2"}
	switch algorithm {
	case "token_bucket", "leaky_bucket":
		early = append(early, "within 2 of 30m")
	case "ban":
		early = []string{"peek 1", "take 1", "strike 1", "strike 9"}
	case inflight.Algorithm:
		early = []string{"peek 1", "take 1", "together 1", "renew 1 of 0"}
	}
	for _, l := range c.other {
		early = append(early, "take 1 under "+l)
	}
	if algorithm != "ban" {
		early = append(early, "refund 1 of 0")
	}
	for _, call := range early {
		calls = append(calls, c.early+" "+call)
	}
	for _, call := range []string{early[0], early[1], early[2], early[3]} {
		calls = append(calls, c.late+" "+call)
	}
	return calls
}

// layoutCases are by algorithm.
func layoutCases() map[string][]layoutCase {
	at := time.Date(2026, 3, 4, 5, 6, 7, 890_123_000, time.UTC)
	one := func(name, limit, early, late string, wrote ...string) layoutCase {
		return layoutCase{stored: stored{Name: name, Limit: limit, User: "user:42", Clock: at, Wrote: wrote}, early: early, late: late}
	}
	under := func(c layoutCase, other ...string) layoutCase { c.other = other; return c }
	when := func(c layoutCase, year int) layoutCase { c.Clock = c.Clock.AddDate(year-2026, 0, 0); return c }
	named := func(c layoutCase, as, user string) layoutCase { c.As, c.User = as, user; return c }
	const largest = "2147483647/87600h"

	common := []layoutCase{
		under(one("one event", "10/h", "1m", "50m", "0m take 1"), "20/h", "5/h", "7/24h"),
		under(one("all that there are", "10/h", "1m", "40m", "0m take 10"), "20/h", "5/h", "7/24h"),
		under(one("past the limit", "10/h", "1m", "2h", "0m take 4", "3m charge 25"), "20/h", "7/24h"),
		one("up to what there are", "10/h", "6m", "80m", "0m take 4", "2m upto 9"),
		one("a part given back", "10/h", "2m", "55m", "0m take 4", "1m take 4", "1m refund 3 of 1"),
		one("across windows", "10/h", "91m", "130m", "0m take 6", "30m take 2", "65m take 1", "90m take 1"),
		one("as many as there can be", largest, "1m", "50000h", "0m take 1000000000", "10h take 1000000000"),
		when(one("the year 1796", "10/24h", "10m", "55m", "0m take 3", "5m take 1"), 1796),
		when(one("the year 2198", "10/24h", "10m", "55m", "0m take 3", "5m take 1"), 2198),
		named(one("a name, and a key that is hashed", "10/h", "1m", "30m", "0m take 2"), "api.v1", "{user}:42"),
		named(one("a name, and a long key", "10/7h", "1m", "7h", "0m take 2"), "api", strings.Repeat("k", 129)),
	}
	bucket := append(slices.Clone(common),
		one("a part of an event", "7/11m burst 5", "4m", "6m", "0m take 2", "100ms take 1", "3.333333m take 1"),
		one("a debt that lasts", "1/24h", "1h", "8000h", "0m charge 400"),
	)
	return map[string][]layoutCase{
		"fixed_window": append(slices.Clone(common),
			under(one("a day", "10/day in Asia/Kolkata", "1h", "14h", "0m take 3"), "20/day in Asia/Kolkata", "20/day in Europe/Berlin", "20/h"),
			one("a week", "10/week from sunday", "1h", "120h", "0m take 3", "1h charge 9"),
			under(one("a month", "1000/month from 31 in America/Sao_Paulo", "1h", "650h", "0m take 3", "1h take 3", "1h refund 2 of 0"), "20/month in UTC"),
		),
		"sliding_window": append(slices.Clone(common),
			under(one("two windows", "10/h", "70m", "130m", "0m take 6", "60m take 2"), "8/h", "20/24h"),
		),
		"sliding_log": append(slices.Clone(common), logCases(one, under)...),
		"token_bucket": append(slices.Clone(bucket),
			under(one("ahead", "10/h burst 3", "1m", "25m", "0m take 3", "0m within 2 of 50m"), "10/h burst 9", "1/24h"),
		),
		"leaky_bucket": append(slices.Clone(bucket),
			under(one("a queue", "10/h burst 3", "1m", "25m", "0m take 2", "0m within 1 of 50m"), "10/h burst 9", "1/24h"),
		),
		"ban": {
			one("a denial", "3/h", "1m", "61m", "0m strike 1"),
			one("two denials", "3/h", "20m", "59m", "0m strike 1", "10m strike 1"),
			one("a ban", "3/h", "1m", "31m", "0m strike 2", "10m strike 1"),
			one("a second ban", "3/h", "41m", "102m", "0m strike 3", "40m strike 3"),
			one("the longest ban", "3/h", "301m", "401m", "0m strike 3", "40m strike 3", "120m strike 3", "300m strike 3"),
			one("after a ban", "3/h", "41m", "131m", "0m strike 3", "40m strike 1"),
			when(one("the year 2198", "3/h", "1m", "31m", "0m strike 3"), 2198),
		},
		inflight.Algorithm: {
			one("one slot", "3/h", "1m", "61m", "0m take 1"),
			under(one("all slots", "3/h", "3m", "61m", "0m take 1", "1m take 1", "2m take 1"), "5/h", "1/h"),
			one("one was given back", "3/h", "3m", "61m", "0m take 1", "1m take 1", "2m take 1", "2m refund 1 of 1"),
			one("one was renewed", "3/h", "41m", "61m", "0m take 1", "1m take 1", "40m renew 1 of 0"),
			one("one has ended", "3/h", "63m", "90m", "0m take 1", "30m take 1", "62m take 1"),
			named(one("with a name", "3/24h", "1h", "24h", "0m take 1", "0m take 1"), "exports", "{user}:42"),
			when(one("the year 2198", "3/h", "1m", "61m", "0m take 1"), 2198),
		},
	}
}

// logCases are of blocks and their entries.
func logCases(one func(name, limit, early, late string, wrote ...string) layoutCase, under func(layoutCase, ...string) layoutCase) []layoutCase {
	var narrow, wide, many []string
	for i := range 70 {
		narrow = append(narrow, fmt.Sprintf("%dms take 1", 100*i))
		wide = append(wide, fmt.Sprintf("%dms take %d", 100*i, 1+i%3))
	}
	for i := range 340 {
		many = append(many, fmt.Sprintf("%dms take 1", 10*i))
	}
	holes := slices.Clone(many)
	for i := 64; i < 192; i++ { // nothing is left of two blocks
		holes = append(holes, fmt.Sprintf("4m refund 1 of %d", i))
	}
	return []layoutCase{
		under(one("two blocks of single events", "75/h", "8m", "63m", narrow...), "100/h", "75/24h"),
		one("two blocks of several events", "150/h", "8m", "63m", wide...),
		one("single and several", "20/h", "8m", "61m", "0m take 1", "1m take 1", "2m take 5", "3m take 1"),
		one("some blocks", "350/h", "4m", "61m", many...),
		one("holes", "350/h", "5m", "61.1m", holes...),
		one("a hole in the last block", "20/h", "8m", "61m", "0m take 1", "1m take 2", "2m take 1", "3m refund 1 of 1"),
		one("a clock that has gone back", "10/h", "1m", "55m", "0m take 3", "2m take 4", "2m back 1500000"),
	}
}
