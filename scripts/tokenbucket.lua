
-- Token bucket. Twin of tokenbucket.go.
-- KEYS, ARGV: see groups.lua. State: see bucket.lua; the level is what is missing
-- from a full bucket.
-- Reply: x now, y whole tokens missing, z the part of one, in 1/period.

local function step(s, l, now, n)
  local missing, part = level(s, l, now)
  local tokens = l.burst - missing
  if part > 0 then -- a token that is not whole yet
    tokens = tokens - 1
  end
  return n <= tokens, now, missing, part, missing + n, part
end

-- If there are too few tokens, but the missing ones come in time, the events are charged beyond
-- the capacity.
if op == 'within' then
  local plain = step
  function step(s, l, now, n)
    local ok, x, missing, part, whole = plain(s, l, now, n)
    if not ok and n <= l.burst and drainsbefore(whole - l.burst, part, l) and holds(whole, part, l) then
      ok, whole = true, whole + DEBT
    end
    return ok, x, missing, part, whole, part
  end
end

if op == 'refund' then
  giveback = takeback
end
