
-- Fixed window. Twin of fixedwindow.go.
-- KEYS, ARGV: see driver.lua. State: at, the time of the last admission; whole, the
-- count of its window.
-- Reply: x now, y the count, z how long it counts, in µs. The count may be above the
-- rate: what was charged past it stays counted.
local available, overdrawn, giveback, refund

local function step(s, l, now, n)
  local count, left = 0, 0
  if s.whole > 0 then
    local last = windowend(s.at, l.period)
    if s.period ~= l.period then -- it counts until its window ends in either period
      last = min(last, windowend(s.at, s.period))
    end
    if now < last then
      count, left = s.whole, last - now
    end
  end
  return count + n <= l.rate, now, count, left, count + n, 0
end

local function ttl(s)
  return windowend(s.at, s.period) - s.at
end

if op == 'upto' then
  function available(l, _, count)
    return max(0, l.rate - count)
  end
elseif op == 'charge' then
  function overdrawn(whole, _, most)
    return min(whole, most)
  end
elseif op == 'refund' then
  function giveback(s, _, _, c)
    if c.period ~= s.period or windowend(c.at, s.period) ~= windowend(s.at, s.period) then
      return false
    end
    s.whole = s.whole - min(c.n, s.whole)
    return true
  end
end
