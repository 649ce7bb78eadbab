
-- Token bucket. Twin of tokenbucket.go.
-- KEYS, ARGV: see driver.lua. State: see bucket.lua; the level is what is missing
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

if op == 'refund' then
  giveback = takeback
end
