
-- Fixed window. Twin of fixedwindow.go.
-- KEYS, ARGV: see groups.lua. State: at, the time of the last admission; whole, the count of its
-- window; part, for a calendar the end of that window in Unix seconds + 2^41, or else 0.
-- Reply: x now, y the count, z how long it counts, in µs. The count may be above the rate,
-- because events that were charged beyond it stay counted.
local available, overdrawn, giveback, refund, sound

local DAYS = 2 * 24 * 3600 * 1000000 -- the most by which a calendar's window can exceed its period, in µs

-- sound reports whether a calendar's window ends after its admissions, and not too long after.
function sound(at, period, part)
  local left = (part - 2 ^ 41) * 1000000 - at
  return part == 0 or left > 0 and left <= period + DAYS
end

-- ttl returns the time from s.at until the end of the window in which s was counted.
local function ttl(s)
  if s.part > 0 then
    return (s.part - 2 ^ 41) * 1000000 - s.at
  end
  return windowend(s.at, s.period) - s.at
end

-- calendar returns the edges of the windows of l, or nil. With edges, l.period is a text, which
-- calendar parses only once, because all calls of a run share l.
local function calendar(l)
  if type(l.period) == 'string' then
    l.edges = {}
    for number in string.gmatch(l.period, '%S+') do
      l.edges[#l.edges + 1] = number * 1000000
    end
    l.period = table.remove(l.edges, 1) / 1000000
  end
  return l.edges
end

local function step(s, l, now, n)
  local count, left, part, last = 0, 0, 0
  s.part = min(s.part, floor((now + s.period + DAYS) / 1000000) + 2 ^ 41) -- part stays sound if s has moved
  local edges = calendar(l)
  if edges then
    local first
    for i = 2, #edges do
      if now >= edges[i - 1] and now < edges[i] then
        first, last = edges[i - 1], edges[i]
      end
    end
    if not last and s.at == now and not s.moved and s.part > 0 and s.period == l.period then
      first, last = now, now + ttl(s) -- another caller's clock is far ahead: use its window
    elseif not last then
      error('ratelimit: the clocks of server and caller differ by more than two windows')
    end
    part = last / 1000000 + 2 ^ 41
    last = s.at < first and first or last -- what was counted before has ended
  end
  if s.whole > 0 then
    last = min(last or windowend(s.at, l.period), s.at + ttl(s)) -- the count ends with the window of either period, whichever ends first
    if now < last then
      count, left = s.whole, last - now
    end
  end
  return count + n <= l.rate, now, count, left, count + n, part
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
  function giveback(s, l, _, c)
    if c.period ~= s.period or c.due ~= s.at + ttl(s) or s.part == 0 and c.at < c.due - s.period then -- c was charged in a longer window, such as a day of 25 hours
      return false
    end
    local edges = s.part > 0 and calendar(l) or {}
    for i = 2, #edges do -- c may be of another calendar, with the same end and an earlier start
      if l.period == s.period and edges[i] == c.due and c.at < edges[i - 1] and edges[i - 1] <= s.at then
        return false
      end
    end
    s.whole = s.whole - min(c.n, s.whole)
    if s.whole == 0 then
      s.part = 0
    end
    return true
  end
end
