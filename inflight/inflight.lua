-- In flight. Twin of rule.go.
-- KEYS, ARGV: see groups.lua. For within, limit.before is the number of the slot to renew.
-- Reply: x the number of the slot, or RetryAfter of a denial; y the slots that are held;
-- z ResetAfter.
--
-- The value is a sorted set. Its members are the numbers of the slots, each followed by a blank
-- and its holder, if the period names one. The scores are the ends of the slots, in Unix µs. The
-- score of the member 'last' is the last number that was given, negated, so that no range of ends
-- includes it.
--
-- If that number is later than now, the server's clock was set back. All ends are then cut to now
-- plus the limit's period, because slots of processes that have died would otherwise stay for as
-- long as the clock was set back. A denial cuts them too. With a caller's clock, nothing is cut,
-- because the clocks of others may be ahead of it.

local available, refund

-- A step of the clock that is ignored, in µs: servers of a cluster may differ by as much.
local STEP = 1000000

local function text(number)
  return format('%.0f', number)
end

-- holder returns the text that follows the numbers of a caller's slots, and removes it from l.period.
local function holder(l)
  if not l.holder then
    local life, name = string.match(l.period, '^(%d+)( .+)$')
    l.period, l.holder = tonumber(life) or l.period, name or ''
  end
  return l.holder
end

-- score returns the score of a member, or nil. It fails if the score is not a time in µs.
local function score(key, member)
  local s = call('ZSCORE', key, member)
  if s then
    s = tonumber(s)
    if s % 1 ~= 0 or s >= 2 * FAR or s <= -2 * FAR then
      error('ratelimit: the value of the key is not a set of slots')
    end
  end
  return s or nil
end

-- ending returns an end in a range of ends, in the order of command, after skip others.
local function ending(key, command, from, to, skip)
  local range = call(command, key, from, to, 'WITHSCORES', 'LIMIT', skip, 1)
  return range[2] and tonumber(range[2])
end

-- plan decides on n slots of a key, and returns the reply and what commit has to write or nil. A
-- slot that is renewed keeps its place, whatever the limit is.
local function plan(key, l, now, callers, n)
  local by = holder(l)
  local held = call('ZCOUNT', key, '(' .. text(now), '+inf')
  local longest = held > 0 and ending(key, 'ZREVRANGEBYSCORE', '+inf', '(' .. text(now), 0) or now
  local last = score(key, 'last')
  local slots = { now = now, till = now + l.period, by = by, longest = max(longest, now + l.period), stale = last and true }
  if last and -last > now + STEP and not callers then
    longest = min(longest, slots.till)
    slots.back = true
  end
  if l.before then
    local till = score(key, text(l.before) .. by)
    if till and till > now then
      slots.first, slots.n, slots.renewed = l.before, 1, true
      return true, l.before, held - 1, longest - now, slots
    end
  end
  slots.first, slots.n = max(now, 1 - (last or 0)), n
  if held + n <= l.rate or op == 'charge' then
    return held + n <= l.rate, slots.first, held, longest - now, slots
  end
  local x = now
  if n <= l.rate then
    x = ending(key, 'ZRANGEBYSCORE', '(' .. text(now), '+inf', held + n - l.rate - 1) - now
    if slots.back then
      x = min(x, l.period)
    end
  end
  slots.n = nil
  return false, x, held, longest - now, slots.back and slots
end

-- commit writes what plan returned. It cuts at most 1,000 ends, and the next call cuts the others.
local function commit(key, p)
  if p.back then
    local late = call('ZRANGEBYSCORE', key, '(' .. text(p.till), '+inf', 'LIMIT', 0, 1000)
    for _, member in ipairs(late) do
      call('ZADD', key, text(p.till), member)
    end
    if #late < 1000 then
      p.longest = p.till
    end
  end
  if p.renewed then
    call('ZADD', key, text(p.till), text(p.first) .. p.by)
  elseif p.n then
    local args = {}
    for i = 0, p.n - 1 do
      args[2 * i + 1], args[2 * i + 2] = text(p.till), text(p.first + i) .. p.by
    end
    call('ZADD', key, text(-(p.first + p.n - 1)), 'last', _G.unpack(args))
    if p.stale then
      call('ZREMRANGEBYSCORE', key, '0', text(p.now))
    end
  end
  call('PEXPIRE', key, text(ceil((p.longest - p.now) / 1000)))
end

if op == 'upto' then
  function available(l, _, held)
    return max(0, l.rate - held)
  end
elseif op == 'refund' then
  function refund(key, l, now, c)
    for i = 0, c.n - 1 do
      call('ZREM', key, text(c.at + i) .. holder(l))
    end
    if call('ZCOUNT', key, '(' .. text(now), '+inf') == 0 then
      call('DEL', key)
    end
  end
end
