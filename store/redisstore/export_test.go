package redisstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/store"
)

// DefaultTimeout is that of a store made without [WithTimeout].
const DefaultTimeout = defaultTimeout

// Jitter has the store take random times from f.
func (s *Store) Jitter(f func(most time.Duration) time.Duration) { s.jitter = f }

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

// RedisKey is the Redis key of key's state.
func (s *Store) RedisKey(ns *store.Namespace, key string) string { return s.key(ns, key) }

// CheckVersion is what Check says of a server whose INFO is this.
func CheckVersion(info string) []string { return checkVersion(parseInfo(info)) }

// Settings is what Check says of the client.
func (s *Store) Settings() []string { return s.link.settings() }

// TakeEach makes claims of one rule in one script. again tells which of those that failed
// would be tried again.
func (s *Store) TakeEach(claims []store.Request) (replies []store.Reply, errs []error, again []bool) {
	b := s.Batch(claims[0].Namespace)
	for _, c := range claims {
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
	b.s.ask(&c.first, "", b.ns, key, op, l, n)
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
func (b *Batch) All(requests []store.Request) { b.calls = append(b.calls, b.s.groupOf(requests, "")) }

// Make makes the calls, in one script. It returns the replies of all requests, and of each call the error, and whether
// it would be tried again.
func (b *Batch) Make() (replies []store.Reply, errs []error, again []bool) {
	p := b.s.link.pipeline
	ctx, cancel := context.WithTimeout(context.Background(), lasting)
	defer cancel()
	g := group{calls: b.calls, op: operation{sending: new(sending)}}
	for _, c := range b.calls {
		if c.script, _ = b.s.scriptOf(c); c.script != b.calls[0].script {
			panic("calls of different rules have no script in common")
		}
		g.requests += c.size()
	}
	_ = p.exec(ctx, new(trip), []group{g}, func(ctx context.Context, cmds []redis.Cmder) { _ = p.client.Process(ctx, cmds[0]) })
	for _, c := range b.calls {
		reply := make([]store.Reply, c.size())
		err, f := c.err, new(fault)
		if err == nil {
			err = parse(c.values, reply)
		} else {
			f = b.s.failed(p.server, c.first.key, err, true)
			err = f.error()
		}
		replies, errs, again = append(replies, reply...), append(errs, err), append(again, f.again)
		c.values, c.err = nil, nil
	}
	return replies, errs, again
}

// Waiting is how many calls wait for a connection.
func (s *Store) Waiting() int {
	p := s.link.pipeline
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting()
}

// Trips is how many round trips are under way that callers wait for.
func (s *Store) Trips() int {
	p := s.link.pipeline
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.trips
}

// Busy is how many connections these have.
func (s *Store) Busy() int {
	p := s.link.pipeline
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conns.busy
}

// Late is how many round trips are under way that nobody waits for.
func (s *Store) Late() int {
	p := s.link.pipeline
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.late
}

// Occupy has as many round trips under way as there may be, until it is called back.
// All that wait at the release go in one trip then: one that ended late may have changed the
// window meanwhile.
func (s *Store) Occupy() (release func()) {
	p := s.link.pipeline
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trips += mostTrips
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		now := time.Now()
		p.trips -= mostTrips
		p.window.calls = max(p.window.calls, p.waiting()*p.ways())
		p.distance.looked = now // no empty trip goes first
		p.start(now)
	}
}

// Fill has as many calls inside as there may be.
func (s *Store) Fill() { s.link.pipeline.expected.inside.Add(longestLine) }

// CheckTrip is what Check says of a round trip and a timeout.
func CheckTrip(trip, timeout time.Duration) []string { return tripFindings(trip, timeout) }

// Widen lets so many calls go in a trip, and in a batch.
func (s *Store) Widen(calls int) {
	p := s.link.pipeline
	p.mu.Lock()
	defer p.mu.Unlock()
	p.window.calls = calls * p.ways()
}

// Near has the server count as near, where no call waits for others while a trip may begin.
func (s *Store) Near() {
	p := s.link.pipeline
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.distance = distance{least: time.Microsecond, since: now, looked: now}
}

// Takes reports whether a trip takes a caller with this much time left who waits.
func Takes(left time.Duration) bool {
	s, _ := New(redis.NewClient(&redis.Options{}))
	defer s.Occupy()()
	p := s.link.pipeline
	now := time.Now()
	bt, _, _ := p.enter(budget{Context: context.Background(), end: now.Add(left), left: left}, &call{})
	t := &trip{begun: now}
	p.fill(t)
	return len(t.list) == 1 && bt.trip == t
}

// Batches is how many batches are in the line, with those that have ended.
func (s *Store) Batches() int {
	p := s.link.pipeline
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.ahead.batches) + len(p.line.batches)
}

// Warmed has the store count on so many connections, and on trips that take so long.
func (s *Store) Warmed(conns int, trip time.Duration) { s.link.pipeline.warmed(conns, trip) }

// Rested has the store not have had an answer for long, since nobody called. It reports
// whether no trip is under way.
func (s *Store) Rested() bool {
	p := s.link.pipeline
	p.mu.Lock()
	defer p.mu.Unlock()
	s.link.plain.pulse.last.Store(-int64(time.Hour))
	s.link.plain.pulse.asked.Store(-int64(time.Hour))
	return p.trips+p.late == 0
}

// MayDial reports whether a call may begin for which no connection is ready.
func (s *Store) MayDial() bool {
	p := s.link.pipeline
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conns.mayDial(time.Now())
}
