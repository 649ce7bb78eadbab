
-- Sliding window counter. Twin of slidingwindow.go.
-- KEYS, ARGV: see driver.lua. State: at, the time of the last admission; whole, the
-- count of its window; part, the count of the window before.
-- Reply: x now, y the count of the previous window, z of the current one; where
-- these were counted in another period, x now (of a denial, RetryAfter),
-- y -1 - ResetAfter, z the count.

-- roll returns the counts of s as the windows lie at now, which is not before
-- s.at, and how many µs are left of the current one.
local function roll(s, now)
  local since = now - window(s.at, s.period)
  if since < s.period then
    return s.part, s.whole, s.period - since
  elseif since < 2 * s.period then
    return s.whole, 0, 2 * s.period - since
  end
  return 0, 0, 0
end

-- weight is how many of prev events still count when left µs are left of the
-- current window, rounded up.
local function weight(prev, left, period)
  local q, r = muldiv(prev, left, period)
  return r > 0 and q + 1 or q
end

-- life is for how long after s.at the state matters.
local function life(s)
  return windowend(s.at, s.period) - s.at + (s.whole > 0 and s.period or 0)
end

-- spend is what of s weighs at now, given the instant last from which on none does.
local function spend(s, last, now)
  if now >= last then
    return 0
  end
  local prev, cur, left = roll(s, now)
  return cur + weight(prev, left, s.period)
end

-- keep is the function that writes count events in the window of now after prev
-- in the one before, or, if they are not ok, a state that the server's clock has
-- moved.
local function keep(key, s, l, now, ok, prev, count)
  return (ok or s.moved) and function()
    if ok then
      s = { at = now, rate = l.rate, period = l.period, whole = count, part = prev }
    end
    write(key, s, life(s))
  end
end

-- convert is the step of a state that was counted in another period. What still
-- weighs goes into the window of today's period in which it was written, and ends
-- with it: else a denied key, of which nothing is written, would weigh by a period
-- that is no longer in force.
local function convert(key, s, l, now, n)
  local last = min(s.at + life(s), windowend(s.at, l.period))
  local count = min(spend(s, last, now), l.rate)
  local ok, x = count + n <= l.rate, now
  if not ok then
    local early, late = now, last -- too early, and late enough unless n is above the rate
    while late - early > 1 do
      local t = early + floor((late - early) / 2)
      if min(spend(s, last, t), l.rate) + n <= l.rate then
        late = t
      else
        early = t
      end
    end
    x = late - now
  end
  return ok, x, -1 - max(0, last - now), count, keep(key, s, l, now, ok, 0, count + n)
end

function step(key, l, clock, n)
  local s, now = read(key, clock)
  local prev, cur, left = 0, 0, 0
  if s.whole > 0 or s.part > 0 then
    if s.period ~= l.period then
      return convert(key, s, l, now, n)
    end
    prev, cur, left = roll(s, now)
    prev = min(prev, l.rate)
    cur = min(cur, l.rate)
  end
  local ok = weight(prev, left, l.period) + cur + n <= l.rate
  return ok, now, prev, cur, keep(key, s, l, now, ok, prev, cur + n)
end

function room(l, now, prev, cur)
  if prev <= 0 then -- nothing before the current window, or all in one
    return max(0, l.rate - cur)
  end
  return max(0, l.rate - cur - weight(prev, windowend(now, l.period) - now, l.period))
end

function refund(key, l, clock, c)
  local s = read(key, clock)
  if c.period ~= s.period then
    return
  end
  local since = window(s.at, s.period) - window(c.at, s.period)
  if since == 0 then
    s.whole = s.whole - min(c.n, s.whole)
  elseif since == s.period then
    s.part = s.part - min(c.n, s.part)
  else
    return
  end
  rewrite(key, s)
end
