
-- Sliding window counter. Twin of slidingwindow.go.
-- KEYS, ARGV: see driver.lua. State: at, the start of the current window; whole,
-- its count; part, the count of the window before.
-- Reply: x now, y the count of the previous window, z of the current one.

-- roll returns the counts of s as the windows lie at now.
local function roll(s, now)
  local since = window(now, s.period) - s.at
  if since == 0 then
    return s.part, s.whole
  elseif since == s.period then
    return s.whole, 0
  end
  return 0, 0
end

-- weight is how many of prev events still count at now, rounded up.
local function weight(prev, period, now)
  local q, r = muldiv(prev, period - (now - window(now, period)), period)
  return r > 0 and q + 1 or q
end

-- life is for how long after s.at the state matters.
local function life(s)
  return s.whole > 0 and 2 * s.period or s.period
end

function step(key, l, clock, n)
  local s, now = read(key, clock, window)
  local prev, cur = 0, 0
  if s.whole > 0 or s.part > 0 then
    prev, cur = roll(s, now)
    if s.period ~= l.period then -- what weighs now goes into the current window
      cur = cur + weight(prev, s.period, now)
      prev = 0
    end
    prev, cur = math.min(prev, l.rate), math.min(cur, l.rate)
  end
  local ok = weight(prev, l.period, now) + cur + n <= l.rate
  return ok, now, prev, cur, (ok or s.moved) and function()
    if ok then
      s = { at = window(now, l.period), period = l.period, whole = cur + n, part = prev }
    end
    write(key, s, s.at + life(s) - now)
  end
end

function refund(key, l, clock, c)
  local s = read(key, clock)
  if s.whole == 0 and s.part == 0 then
    return
  end
  local since = s.at - window(c.at, s.period)
  if since == 0 then
    s.whole = s.whole - math.min(c.n, s.whole)
  elseif since == s.period then
    s.part = s.part - math.min(c.n, s.part)
  else
    return
  end
  rewrite(key, s)
end
