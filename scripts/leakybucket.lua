
-- Leaky bucket. Twin of leakybucket.go.
-- KEYS, ARGV: see driver.lua. State: see bucket.lua; the level is the queue.
-- Reply: x now, y whole events in the queue, z the part of one, in 1/period.

function step(key, l, clock, n)
  local s, now = read(key, clock)
  local queue, part = level(s, l, now)
  local places = queue + n
  if part > 0 then -- an event that has not drained whole keeps its place
    places = places + 1
  end
  local ok = places <= l.burst
  return ok, now, queue, part, keep(key, s, l, now, ok, queue + n, part)
end

function room(l, _, queue, part)
  return l.burst - queue - (part > 0 and 1 or 0)
end

-- Only the tail of the queue is given back: c is the tail if it was the last to
-- come, and left no lower level behind than there is.
function refund(key, l, clock, c)
  local s, now = read(key, clock)
  if s.whole == 0 and s.part == 0 then
    return
  end
  local whole, part = convert(s, l)
  local w, p = convert(chargedlevel(c), l)
  if c.at == s.at and (w > whole or w == whole and p >= part) then
    giveback(key, s, l, now, c)
  end
end
