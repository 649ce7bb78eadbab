
-- Fixed window. Twin of fixedwindow.go.
-- KEYS, ARGV: see driver.lua. State: at, the start of the window; whole, its count.
-- Reply: x now, y the count.

local function counted(s, now)
  return now < s.at + s.period and s.whole or 0
end

function step(key, l, clock, n)
  local s, now = read(key, clock, window)
  local count = math.min(counted(s, now), l.rate)
  local ok = count + n <= l.rate
  return ok, now, count, 0, (ok or s.moved) and function()
    if ok then
      s = { at = window(now, l.period), period = l.period, whole = count + n, part = 0 }
    end
    write(key, s, s.at + s.period - now)
  end
end

function refund(key, l, clock, c)
  local s = read(key, clock)
  if s.whole > 0 and window(c.at, s.period) == s.at then
    s.whole = s.whole - math.min(c.n, s.whole)
    rewrite(key, s)
  end
end
