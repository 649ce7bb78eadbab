
-- Token bucket. Twin of tokenbucket.go.
-- KEYS, ARGV: see driver.lua. State: see bucket.lua; the level is what is missing
-- from a full bucket.
-- Reply: x now, y whole tokens missing, z the part of one, in 1/period.

function step(key, l, clock, n)
  local s, now = read(key, clock)
  local missing, part = level(s, l, now)
  local tokens = l.burst - missing
  if part > 0 then -- a token that is not whole yet
    tokens = tokens - 1
  end
  local ok = n <= tokens
  return ok, now, missing, part, keep(key, s, l, now, ok, missing + n, part)
end

function room(l, _, missing, part)
  return l.burst - missing - (part > 0 and 1 or 0)
end

function refund(key, l, clock, c)
  local s, now = read(key, clock)
  if s.whole > 0 or s.part > 0 then
    giveback(key, s, l, now, c)
  end
end
