
-- The level of a bucket, shared by the token bucket and the leaky bucket. Twin of
-- bucket.go. State: at, the time of the level; whole and part, the level, which is
-- whole + part/period events and falls by rate/period in one µs.

-- convert is the level of s, at s.at, as l counts.
local function convert(s, l)
  if s.whole >= l.burst then
    return l.burst, 0
  elseif s.period ~= l.period and s.part > 0 then
    return s.whole + 1, 0
  end
  return s.whole, s.part
end

-- subtract is (whole + part/period) - (w + p/period), at least 0.
local function subtract(whole, part, w, p, period)
  whole, part = whole - w, part - p
  if part < 0 then
    whole, part = whole - 1, part + period
  end
  if whole < 0 then
    return 0, 0
  end
  return whole, part
end

-- drain is what is left of a level after dt µs.
local function drain(whole, part, dt, l)
  local q, r = muldiv(dt, l.rate, l.period)
  return subtract(whole, part, q, r, l.period)
end

-- draintime is how long a level takes to drain, in µs, rounded up.
local function draintime(whole, part, l)
  local q, r = muldiv(whole, l.period, l.rate)
  return q + ceil((r + part) / l.rate)
end

-- level is the level of s at now under l: 0 if it had drained by the limit that it
-- was counted under.
local function level(s, l, now)
  if s.whole == 0 and s.part == 0 then
    return 0, 0
  end
  if (s.rate ~= l.rate or s.period ~= l.period) and now - s.at >= draintime(s.whole, s.part, s) then
    return 0, 0
  end
  local whole, part = convert(s, l)
  return drain(whole, part, now - s.at, l)
end

-- keep is the function that writes a bucket in which n events are charged at now,
-- or, if they are not ok, one that the server's clock has moved.
local function keep(key, s, l, now, ok, whole, part)
  return (ok or s.moved) and function()
    if ok then
      s = { at = now, rate = l.rate, period = l.period, whole = whole, part = part }
    end
    write(key, s, draintime(s.whole, s.part, s))
  end
end

-- chargedlevel is the level that c left behind, as a state: what drained from then
-- until c.due.
local function chargedlevel(c)
  local whole, part = muldiv(c.due - c.at, c.rate, c.period)
  return { at = c.at, rate = c.rate, period = c.period, whole = whole, part = part }
end

-- giveback takes from the level what is still charged of c: of its events what is
-- left now of the level that it left behind, nothing from c.due on, and no more than
-- is there; in another period, whole events.
local function giveback(key, s, l, now, c)
  if now >= c.due or c.at > s.at then -- a state before the charge is another one
    return
  end
  local whole, part = level(s, l, now)
  local w, p = level(chargedlevel(c), l, now)
  if w >= c.n then
    w, p = c.n, 0
  end
  if w > whole or w == whole and p >= part then -- all that is there
    s.whole, s.part = 0, 0
  else
    if s.whole >= l.burst then
      s.whole, s.part = l.burst, 0
    end
    if s.period ~= l.period then
      p = 0
    end
    s.whole, s.part = subtract(s.whole, s.part, w, p, s.period)
  end
  rewrite(key, s)
end
