
-- Fixed window. Twin of fixedwindow.go.
-- KEYS, ARGV: see driver.lua. State: at, the time of the last admission; whole, the
-- count of its window; part, the end of that window in Unix seconds + 2^41, if it is of a
-- calendar, or else 0.
-- Reply: x now, y the count, z how long it counts, in µs. The count may be above the
-- rate: what was charged past it stays counted.
local available, overdrawn, giveback, refund

-- ownend is the end of the window in which s was counted.
local function ownend(s)
  if s.part > 0 then
    return (s.part - 2 ^ 41) * 1000000
  end
  return windowend(s.at, s.period)
end

-- calendar reads l.period of a calendar, once, into a number and the edges.
local function calendar(l)
  l.edges = {}
  for number in string.gmatch(l.period, '%S+') do
    l.edges[#l.edges + 1] = number * 1000000
  end
  l.period = table.remove(l.edges, 1) / 1000000
end

-- window is the one of l's calendar that contains now: its start and its end. If the decision has
-- moved to the time of s, since another caller's clock is far ahead, it is that of s.
local function window(s, l, now)
  local edges = l.edges
  for i = 2, #edges do
    if now >= edges[i - 1] and now < edges[i] then
      return edges[i - 1], edges[i]
    end
  end
  if s.at == now and not s.moved and s.part > 0 and s.period == l.period then
    return now, ownend(s)
  end
  error('ratelimit: the clocks of server and caller differ by more than two windows')
end

local function step(s, l, now, n)
  local count, left = 0, 0
  if type(l.period) == 'string' then
    calendar(l)
  end
  if l.edges then
    local first, last = window(s, l, now)
    if s.whole > 0 and s.at >= first and now < min(last, ownend(s)) then
      count, left = s.whole, min(last, ownend(s)) - now
    end
    return count + n <= l.rate, now, count, left, count + n, last / 1000000 + 2 ^ 41
  end
  if s.whole > 0 then
    local last = windowend(s.at, l.period)
    if s.period ~= l.period or s.part > 0 then -- it counts until its window ends in either
      last = min(last, ownend(s))
    end
    if now < last then
      count, left = s.whole, last - now
    end
  end
  return count + n <= l.rate, now, count, left, count + n, 0
end

local function ttl(s)
  return ownend(s) - s.at
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
    if c.period ~= s.period or c.due ~= ownend(s) then
      return false
    end
    s.whole = s.whole - min(c.n, s.whole)
    if s.whole == 0 then
      s.part = 0
    end
    return true
  end
end
