
-- Generic cell rate algorithm. Twin of gcra.go.
-- KEYS, ARGV: see groups.lua. State: see bucket.lua; the level is how far the
-- theoretical arrival time is ahead of at, in intervals of period/rate.
-- Reply: x now, y whole intervals ahead of it, z the part of one, in 1/period.

local function step(s, l, now, n)
  local ahead, part = level(s, l, now)
  local early = ahead + n - l.burst -- with part, by how many intervals the events come too soon
  local ok, over = early < 0 or early == 0 and part == 0, 0
  if not ok and op == 'within' and n <= l.burst and drainsbefore(early, part, l) and holds(ahead + n, part, l) then
    ok, over = true, DEBT
  end
  return ok, now, ahead, part, ahead + n + over, part
end

if op == 'refund' then
  giveback = takeback
end
