
-- Leaky bucket. Twin of leakybucket.go.
-- KEYS, ARGV: see groups.lua. State: see bucket.lua; the level is the queue.
-- Reply: x now, y whole events in the queue, z the part of one, in 1/period.

local function step(s, l, now, n)
  local queue, part = level(s, l, now)
  local places = queue + n
  if part > 0 then -- an event keeps its place until all of it has drained
    places = places + 1
  end
  return places <= l.burst, now, queue, part, queue + n, part
end

-- There must be room, and the turn must be near enough.
if op == 'within' then
  local plain = step
  function step(s, l, now, n)
    local ok, x, queue, part, whole = plain(s, l, now, n)
    ok = ok and (l.before == 0 or drainsbefore(queue, part, l))
    return ok, x, queue, part, whole, part
  end
end

-- Only the tail of the queue is refunded. c is the tail if the queue holds no more than what is
-- left of the level after the charge of c.
if op == 'refund' then
  function giveback(s, l, now, c)
    local whole, part = level(s, l, s.at)
    local behind = chargedlevel(c, c.over or s.whole >= DEBT)
    local w, p = level(behind, l, max(c.at, s.at)) -- both at the same time
    return (w > whole or w == whole and p >= part) and takeback(s, l, now, c)
  end
end
