
-- Leaky bucket. Twin of leakybucket.go.
-- KEYS, ARGV: see driver.lua. State: see bucket.lua; the level is the queue.
-- Reply: x now, y whole events in the queue, z the part of one, in 1/period.

local function step(s, l, now, n)
  local queue, part = level(s, l, now)
  local places = queue + n
  if part > 0 then -- an event that has not drained whole keeps its place
    places = places + 1
  end
  return places <= l.burst, now, queue, part, queue + n, part
end

-- Only the tail of the queue is given back: c is the tail if it was the last to
-- come, and left no lower level behind than there is.
if op == 'refund' then
  function giveback(s, l, now, c)
    local whole, part = level(s, l, s.at)
    local w, p = level(chargedlevel(c, s.whole >= DEBT), l, c.at) -- to compare like with like
    return c.at == s.at and (w > whole or w == whole and p >= part) and takeback(s, l, now, c)
  end
end
