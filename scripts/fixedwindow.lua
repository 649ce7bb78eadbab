
-- Fixed window. Twin of fixedwindow.go.
-- KEYS, ARGV: see driver.lua. State: at, the time of the last admission; whole, the
-- count of its window.
-- Reply: x now, y the count, z for how long it counts.

function step(key, l, clock, n)
  local s, now = read(key, clock)
  local count, left = 0, 0
  if s.whole > 0 then
    -- Counted in another period, it counts until its window ends in either.
    local last = min(windowend(s.at, s.period), windowend(s.at, l.period))
    if now < last then
      count, left = min(s.whole, l.rate), last - now
    end
  end
  local ok = count + n <= l.rate
  return ok, now, count, left, (ok or s.moved) and function()
    if ok then
      s = { at = now, rate = l.rate, period = l.period, whole = count + n, part = 0 }
    end
    write(key, s, windowend(now, s.period) - now)
  end
end

function room(l, _, count)
  return max(0, l.rate - count)
end

function refund(key, l, clock, c)
  local s = read(key, clock)
  if c.period == s.period and window(c.at, s.period) == window(s.at, s.period) then
    s.whole = s.whole - min(c.n, s.whole)
    rewrite(key, s)
  end
end
