package redisstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/carrier"
)

// DefaultTimeout is that of a store made without [WithTimeout].
const DefaultTimeout = defaultTimeout

// WithJitter has the store take random times from f.
func WithJitter(f func(most time.Duration) time.Duration) Option {
	return func(s *Store) error {
		s.jitter = f
		return nil
	}
}

// ScriptOf makes the whole script of a rule whose Lua decides on one key. It has ARGV as a request alone has it, and
// returns a reply, an error reply, or anything else if it is alone. No request of a group waits for the others.
func ScriptOf(lua string) func([]*store.Rule) string {
	text := strings.Replace(`
local function decide(KEYS, ARGV)
	LUA
end
if ARGV[1] == 'none' then
	return {}
elseif ARGV[1] ~= 'groups' then
	return decide(KEYS, ARGV)
end
local replies, run = {}, 3
while ARGV[run] do
	local groups, requests = ARGV[run] + 0, ARGV[run + 1] + 0
	for i = 0, groups * requests - 1 do
		local a = run + 2 + i % requests * 5
		local op = string.match(ARGV[a], '^%d+ (.*)') or 'take'
		local clock = ARGV[2] ~= '' and ARGV[2] or nil
		local reply = decide({ KEYS[#replies / 4 + 1] }, { op, ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4], clock })
		for j, v in ipairs(reply.err and { reply.err, 0, 0, 0 } or reply) do
			replies[#replies + 1] = v
		end
	end
	run = run + 2 + 5 * requests
end
return replies`, "LUA", lua, 1)
	return func([]*store.Rule) string { return text }
}

// SlotOf is the slot of a cluster that has a key in Redis.
func SlotOf(key string) int { return slotOf(key) }

// RedisKey is the Redis key of key's state.
func (s *Store) RedisKey(ns *store.Namespace, key string) string { return s.key(ns, key) }

// TakeEach makes requests of one rule in one script. again tells which of those that failed
// would be tried again.
func (s *Store) TakeEach(requests []store.Request) (replies []store.Reply, errs []error, again []bool) {
	b := s.Batch(requests[0].Namespace)
	for _, c := range requests {
		b.Take(c.Key, c.Limit, c.N)
	}
	return b.Make()
}

// Batch is calls to make in one script.
type Batch struct {
	s     *Store
	ns    *store.Namespace
	calls []*call
}

func (s *Store) Batch(ns *store.Namespace) *Batch { return &Batch{s: s, ns: ns} }

func (b *Batch) add(key, op string, l store.Limit, n int64) {
	c := new(call)
	b.s.fill(&c.first, "", b.ns, key, op, l, n)
	b.calls = append(b.calls, c)
}

func (b *Batch) Take(key string, l store.Limit, n int64)     { b.add(key, within("take", l), l, n) }
func (b *Batch) TakeUpTo(key string, l store.Limit, n int64) { b.add(key, "upto", l, n) }
func (b *Batch) Peek(key string, l store.Limit, n int64)     { b.add(key, "look", l, n) }
func (b *Batch) Overdraw(key string, l store.Limit, n, most int64) {
	b.add(key, fmt.Sprint("charge ", most), l, n)
}
func (b *Batch) Refund(key string, l store.Limit, c store.Receipt) { b.add(key, refund(c), l, c.N) }

// All adds a TakeAll.
func (b *Batch) All(requests []store.Request) {
	c := new(call)
	b.s.fillAll(c, requests, "")
	b.calls = append(b.calls, c)
}

// Make makes the calls, in one script. It returns the replies of all requests, and of each call the error, and whether
// it would be tried again.
func (b *Batch) Make() (replies []store.Reply, errs []error, again []bool) {
	v := b.s.link.whole
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	g := bundle{calls: b.calls, op: operation{writing: new(carrier.Writing)}}
	for _, c := range b.calls {
		if c.script, _ = b.s.scriptOf(c); c.script != b.calls[0].script {
			panic("calls of different rules have no script in common")
		}
		g.requests += c.size()
	}
	_, _ = v.exec(ctx, []bundle{g}, func(ctx context.Context, cmds []redis.Cmder) { _ = v.client.Process(ctx, cmds[0]) })
	for _, c := range b.calls {
		reply := make([]store.Reply, c.size())
		err, f := c.err, new(fault)
		if err == nil {
			err = parse(c.values, reply)
		} else {
			f = faultOf(v.Explain(err, true))
			err = f
		}
		replies, errs, again = append(replies, reply...), append(errs, err), append(again, f.Again)
		c.values, c.err = nil, nil
	}
	return replies, errs, again
}

// of is what the carriers of all servers know.
func (s *Store) of() (sum carrier.Stats) {
	s.link.each(func(v *server) {
		of := v.Stats()
		sum.Waiting, sum.Trips, sum.Busy, sum.Late = sum.Waiting+of.Waiting, sum.Trips+of.Trips, sum.Busy+of.Busy, sum.Late+of.Late
	})
	return sum
}

// Waiting is how many calls wait for a connection.
func (s *Store) Waiting() int { return s.of().Waiting }

// Trips is how many round trips are under way that callers wait for.
func (s *Store) Trips() int { return s.of().Trips }

// Busy is how many connections these have.
func (s *Store) Busy() int { return s.of().Busy }

// Late is how many round trips are under way that nobody waits for.
func (s *Store) Late() int { return s.of().Late }

// Fill has as many calls inside as there may be.
func (s *Store) Fill() {
	for b := s.link.whole.Begin(context.Background()); s.link.whole.Admit(&b) == nil; {
	}
}

// Warmed has the store count on so many connections, and on trips that take so long.
func (s *Store) Warmed(conns int, trip time.Duration) { s.link.whole.Warmed(conns, trip) }

// Servers is how many servers of a cluster or a ring are known.
func (s *Store) Servers() (n int) {
	s.link.each(func(*server) { n++ })
	return n - 1
}
