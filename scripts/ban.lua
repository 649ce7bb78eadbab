
-- Ban. Twin of ban.go.
-- KEYS, ARGV: see groups.lua. Limit: rate, how many denials begin a ban; period, the length of
-- the longest ban; burst, that of the first ban, in s; before, 1 more than the µs within which
-- the denials must occur. A look may have no before.
-- State: at, the time of the last denial that counted; whole, 65536 times the number of
-- remembered bans, plus the number of denials; part, how long after at the denials count or, if
-- there are none, the ban lasts; period, how long bans are remembered.
-- Reply: x now, y how many denials count, z how long they count or the ban lasts, in µs.
local available, overdrawn, giveback, refund, sound

local function ttl(s)
  local denials = s.whole % 65536
  if denials == 0 then
    return s.part + s.period
  elseif s.whole > denials then
    return max(s.part, s.period)
  end
  return s.part
end

local function step(s, l, now, n)
  local bans, denials, left = 0, 0, 0
  if s.whole > 0 and now - s.at < ttl(s) then
    denials = s.whole % 65536
    bans = (s.whole - denials) / 65536
    left = max(0, s.at + s.part - now)
    if denials == 0 and left > 0 then
      return false, now, l.rate, left, s.whole, s.part
    elseif left == 0 then
      denials = 0
    end
  end
  local y, z = denials, left
  if denials == 0 then
    left = (l.before or 1) - 1
  end
  denials = denials + n
  if denials >= l.rate then
    denials, left = 0, l.burst * 1000000
    for _ = 1, bans do
      left = min(2 * left, l.period)
    end
    if bans == 0 or left < l.period then
      bans = bans + 1
    end
  end
  return true, now, y, z, 65536 * bans + denials, left
end

if op == 'upto' then
  function available(l, _, denials)
    return max(0, l.rate - denials)
  end
elseif op == 'charge' then
  function overdrawn(whole)
    return whole
  end
elseif op == 'refund' then
  function giveback()
    return false
  end
end
