package ratelimit_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
)

// session is a window that begins with the first event of a key: Rate events until a Period later.
//
// In a State, At is the time of the last event, Part how long before it the window began, and Whole the
// number of events since then. In a Reply, X is now, Y the number of events before the decision, and Z how
// long they count.
var session = ratelimit.NewRule(store.Rule{
	Name: "session_window",
	Step: func(s store.State, l store.Limit, now, n int64) (store.State, store.Reply) {
		now = max(now, s.At)
		start, count := s.At-s.Part, s.Whole
		if count == 0 || now >= start+min(s.Period, l.Period) {
			start, count = now, 0
		}
		r := store.Reply{Outcome: store.AdmittedIf(count+n <= l.Rate), X: now, Y: count, Z: start + l.Period - now}
		return store.State{At: now, Part: now - start, Period: l.Period, Whole: count + n}, r
	},
	Available: func(l store.Limit, r store.Reply) int64 { return max(0, l.Rate-r.Y) },
	Report: func(l store.Limit, r store.Reply, n, charged int64) store.Report {
		count := r.Y + charged
		report := store.Report{Remaining: max(0, l.Rate-count), Retry: r.Z}
		if n > l.Rate {
			report.Retry = store.Never
		}
		if count > 0 {
			report.Reset = r.Z
		}
		return report
	},
	After: func(r store.Reply, n int64) store.Reply {
		r.Y += n
		return r
	},
	Spent: func(r store.Reply) int64 { return r.Y },
	Overdrawn: func(next store.State, _ store.Limit, most int64) store.State {
		next.Whole = min(next.Whole, most)
		return next
	},
	Refund: func(s store.State, _ store.Limit, _ int64, c store.Receipt) store.State {
		if start := s.At - s.Part; c.Due == start+s.Period && c.At >= start { // charged in this window
			s.Whole -= min(c.N, s.Whole)
		}
		if s.Whole == 0 {
			return store.State{}
		}
		return s
	},
	TTL: func(s store.State, _ store.Limit) int64 { return s.Period - s.Part },
	Used: func(s store.State, end, now int64) int64 {
		if now >= end {
			return 0
		}
		return s.Whole
	},
}, sessionLua)

const sessionLua = `
local plan, commit, available, refund

local function read(key)
  local value = call('GET', key)
  if value then
    local at, part, period, whole = unpack('>dddd', value)
    if not whole then
      error('ratelimit: the value of the key is not a state')
    end
    return { at = at, part = part, period = period, whole = whole }
  end
end

function plan(key, l, now, callers, n)
  local s = read(key) or { at = now, part = 0, period = l.period, whole = 0 }
  if s.at > now and callers then
    now = s.at -- the clock of another caller is ahead
  elseif s.at > now then
    s.at, s.moved = now, true -- the server's clock was set back
  end
  local start, count = s.at - s.part, s.whole
  if count == 0 or now >= start + min(s.period, l.period) then
    start, count = now, 0
  end
  local ok, x, y, z = count + n <= l.rate, now, count, start + l.period - now
  if ok or op == 'charge' then
    count = ok and count + n or min(count + n, l.most)
    return ok, x, y, z, { at = now, part = now - start, period = l.period, whole = count }
  end
  return ok, x, y, z, s.moved and s
end

local function value(s)
  return pack('>dddd', s.at, s.part, s.period, s.whole)
end

function commit(key, s)
  call('SET', key, value(s), 'PX', format('%.0f', ceil((s.period - s.part) / 1000)))
end

if op == 'upto' then
  function available(l, _, count)
    return max(0, l.rate - count)
  end
elseif op == 'refund' then
  function refund(key, l, now, c)
    local s = read(key)
    local start = s and s.at - s.part
    if not s or now >= start + s.period or c.due ~= start + s.period or c.at < start then
      return
    end
    s.whole = s.whole - min(c.n, s.whole)
    if s.whole == 0 then
      call('DEL', key)
    else
      call('SET', key, value(s), 'KEEPTTL')
    end
  end
end
`

// A window that begins with the first event of a key, in memory and on Redis.
func ExampleNewRule() {
	store := frozenMemory() // or a redisstore.Store
	limiter, err := ratelimit.NewCustom(session, store, ratelimit.Limit{Rate: 2, Period: time.Minute}, ratelimit.WithName("sessions"))
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		r, err := limiter.Allow(context.Background(), "user:ann")
		fmt.Println(r, err)
	}
	// Output:
	// allowed, 1 of 2 left, reset in 1m0s <nil>
	// allowed, 0 of 2 left, reset in 1m0s <nil>
	// denied, retry after 1m0s <nil>
}
