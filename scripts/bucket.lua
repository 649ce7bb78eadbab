
-- The level of a bucket, shared by the token bucket and the leaky bucket. Twin of
-- internal/bucket/bucket.go.
-- State: at, the time of the level; whole and part, the level, which is
-- whole + part/period events and falls by rate/period in one µs.
-- A level that was charged beyond the capacity has DEBT added to whole. It is clamped to what
-- drains in 100 years instead of to the capacity.
local DEBT = 2 ^ 31
local CENTURY = 100 * 365 * 24 * 3600 * 1000000 -- µs
local available, overdrawn, giveback, refund, sound
local chargedlevel, takeback
local drainsbefore, holds

-- ttl returns how long the level takes to drain, in µs, rounded up.
local function ttl(s)
  local q, r = muldiv(s.whole % DEBT, s.period, s.rate)
  return q + ceil((r + s.part) / s.rate)
end

-- level returns the level of s at now under l: what is charged, less what has drained, which is how
-- a token bucket refills. It returns 0 if the level has drained under the limit that it was counted
-- under, as a store of states does in Go before it asks for the level.
local function level(s, l, now)
  local whole, part = s.whole, s.part
  if whole == 0 and part == 0 then
    return 0, 0
  end
  if (s.rate ~= l.rate or s.period ~= l.period) and now - s.at >= ttl(s) then
    return 0, 0
  end
  if whole >= l.burst and whole < DEBT then
    whole, part = l.burst, 0
  elseif s.period ~= l.period and part > 0 then
    whole, part = whole + 1, 0
  end
  if whole >= DEBT then
    whole = min(whole - DEBT, DEBT - 1, (muldiv(CENTURY, l.rate, l.period)))
  end
  local w, p = muldiv(now - s.at, l.rate, l.period)
  whole, part = whole - w, part - p
  if part < 0 then
    whole, part = whole - 1, part + l.period
  end
  if whole < 0 then
    return 0, 0
  end
  return whole, part
end

if op == 'within' then
  -- drainsbefore reports whether a level drains in less than l.before µs. It is false if that is 0.
  function drainsbefore(whole, part, l)
    local w, p = muldiv(l.before - 1, l.rate, l.period)
    return whole < w or whole == w and part <= p
  end

  -- holds reports whether a state may hold this level beyond the capacity.
  function holds(whole, part, l)
    return whole + (part > 0 and 1 or 0) <= min(DEBT - 1, (muldiv(CENTURY, l.rate, l.period)))
  end
elseif op == 'upto' then
  function available(l, _, whole, part)
    return max(0, l.burst - whole - (part > 0 and 1 or 0))
  end
elseif op == 'charge' then
  function overdrawn(whole, l, most)
    whole = min(whole, most)
    return whole >= l.burst and whole + DEBT or whole
  end
elseif op == 'refund' then
  -- chargedlevel returns the level after the charge of c, as a state: what drains from then
  -- until c.due. excess means that the level was beyond the capacity.
  function chargedlevel(c, excess)
    local whole, part = muldiv(c.due - c.at, c.rate, c.period)
    if whole >= DEBT then -- c.due is rounded up, and no level is above this
      whole, part = DEBT - 1, c.period - 1
    end
    if excess then
      whole = whole + DEBT
    end
    return { at = c.at, rate = c.rate, period = c.period, whole = whole, part = part }
  end

  -- leftof returns the level after the charge of c. c.over records whether it was beyond the
  -- capacity. If it was, but s is not, other events have been admitted since. At s.at, the level
  -- was then low enough for an event to fit. c.due may contradict this, because events charged
  -- before c may have been refunded.
  local function leftof(c, s, l)
    local left = chargedlevel(c, c.over)
    if not c.over or s.whole >= DEBT then
      return left
    end
    local whole, part = level(left, l, s.at)
    if whole >= l.burst - 1 then
      whole, part = l.burst - 1, 0
    end
    return { at = s.at, rate = l.rate, period = l.period, whole = whole, part = part }
  end

  -- takeback takes from the level what is still charged of c: what is left now of the level
  -- after the charge of c, at most c.n events. It is nothing from c.due on, and never more than
  -- the current level. If the period is another one, only whole events are taken.
  function takeback(s, l, now, c)
    if now >= c.due or c.at > s.at then -- the state that was charged is gone
      return false
    end
    local whole, part = level(s, l, now)
    local w, p = level(leftof(c, s, l), l, now)
    if w >= c.n then
      w, p = c.n, 0
    end
    if w > whole or w == whole and p >= part then -- nothing else is charged
      s.whole, s.part = 0, 0
      return true
    end
    local owing = s.whole >= DEBT and DEBT or 0
    if owing > 0 then
      s.whole = min(s.whole - DEBT, (muldiv(CENTURY, l.rate, l.period)))
    elseif s.whole >= l.burst then
      s.whole, s.part = l.burst, 0
    end
    if s.period ~= l.period then
      p = 0
    end
    s.whole, s.part = s.whole - w, s.part - p
    if s.part < 0 then
      s.whole, s.part = s.whole - 1, s.part + s.period
    end
    if s.whole > 0 then
      s.whole = s.whole + owing
    end
    return true
  end
end
