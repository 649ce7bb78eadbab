
-- Sliding window counter. Twin of slidingwindow.go.
-- KEYS, ARGV: see groups.lua. State: at, the time of the last admission; whole, the
-- count of its window; part, the count of the window before.
-- Reply: x now, y the count of the previous window, z of the current one. If these were
-- counted in another period: x now, or RetryAfter of a denial; y -1 - ResetAfter; z the count.
--
-- Counts may be above the rate, because events that were charged beyond it stay counted. The
-- previous count then weighs as much as the rate.
local available, overdrawn, giveback, refund, sound

-- roll returns the counts of s in the previous and the current window of now, and how many µs
-- are left of the current one. now is not before s.at.
local function roll(s, now)
  local since = now - windowend(s.at, s.period) + s.period
  if since < s.period then
    return s.part, s.whole, s.period - since
  elseif since < 2 * s.period then
    return s.whole, 0, 2 * s.period - since
  end
  return 0, 0, 0
end

-- weight returns how many of prev events still count when left µs are left of the current
-- window, rounded up.
local function weight(prev, left, period)
  local q, r = muldiv(prev, left, period)
  return r > 0 and q + 1 or q
end

-- ttl returns how long after s.at the state matters, in µs.
local function ttl(s)
  return windowend(s.at, s.period) - s.at + (s.whole > 0 and s.period or 0)
end

-- convert is the step of a state that was counted in another period. The events that still weigh
-- go into the window of the new period in which they were written, and end with it. Otherwise, a
-- key that is denied, and therefore not written, would keep its weight under the old period.
local function convert(s, l, now, n)
  local last = min(s.at + ttl(s), windowend(s.at, l.period))
  local function weighs(t) -- the weight at t, which is 0 from last on
    if t >= last then
      return 0
    end
    local prev, cur, left = roll(s, t)
    return cur + weight(min(prev, l.rate), left, s.period)
  end
  local count = weighs(now)
  local ok, x = count + n <= l.rate, now
  if not ok then
    local early, late = now, last -- early is too early, and late is late enough unless n is above the rate
    while late - early > 1 do
      local t = early + floor((late - early) / 2)
      if weighs(t) + n <= l.rate then
        late = t
      else
        early = t
      end
    end
    x = late - now
  end
  return ok, x, -1 - max(0, last - now), count, count + n, 0
end

local function step(s, l, now, n)
  local prev, cur, weighing = 0, 0, 0
  if s.whole > 0 or s.part > 0 then
    if s.period ~= l.period then
      return convert(s, l, now, n)
    end
    local left
    prev, cur, left = roll(s, now)
    weighing = weight(min(prev, l.rate), left, l.period)
  end
  return weighing + cur + n <= l.rate, now, prev, cur, cur + n, prev
end

if op == 'upto' then
  function available(l, now, prev, cur)
    if prev > 0 then -- below 0 there is a single count
      cur = cur + weight(min(prev, l.rate), windowend(now, l.period) - now, l.period)
    end
    return max(0, l.rate - cur)
  end
elseif op == 'charge' then
  function overdrawn(whole, _, most)
    return min(whole, most)
  end
elseif op == 'refund' then
  function giveback(s, _, _, c)
    if c.period ~= s.period then
      return false
    end
    local since = windowend(s.at, s.period) - windowend(c.at, s.period)
    if since == 0 then
      s.whole = s.whole - min(c.n, s.whole)
    elseif since == s.period then
      s.part = s.part - min(c.n, s.part)
    else
      return false
    end
    return true
  end
end
