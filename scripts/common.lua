-- Shared by all scripts: exact integers, and the state of four of the algorithms.
-- Twin of store.State and of the use of math/bits in Go.
--
-- Lua's numbers are doubles: integers are exact up to 2^53, and math.floor(x / c)
-- is the exact quotient of integers x below 2^52. Times are Unix µs (2^51 in 2041),
-- Periods and durations µs, rates and bursts at most 2^31-1.

local call = redis.call
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local format, match = string.format, string.match

-- digits writes an integer in full; tostring would keep 14 digits of it.
local function digits(x)
  return format('%.0f', x)
end

-- muldiv returns the quotient and the remainder of a*b / c for c below 2^50: the
-- product is never made, but divided piece by piece, in as large pieces as fit. A
-- quotient above 2^53 is only near, and still above all that it is compared with.
local function muldiv(a, b, c)
  local product = a * b
  if product < 2 ^ 52 then -- nearly always
    local q = floor(product / c)
    return q, product - q * c
  end
  local times = floor(b / c)
  b = b - times * c
  local base = floor(2 ^ 51 / c)
  if a < base then
    product = a * b
    local q = floor(product / c)
    return a * times + q, product - q * c
  end
  local high = floor(a / base)
  local q, r = muldiv(high, b, c)
  local rest = r * base + (a - high * base) * b
  local p = floor(rest / c)
  return a * times + q * base + p, rest - p * c
end

-- window is the start of the window of period in which t lies.
local function window(t, period)
  return t - t % period
end

-- windowend is the end of that window, and the start of the next.
local function windowend(t, period)
  return window(t, period) + period
end

-- A state is the text "at rate period whole part", five integers; no key, no spend.
-- Rate and period are those of the limit that it was counted under.

-- read returns the state of a key, and the time of the decision. Stored time is
-- never later than that: under a caller's clock, which others may be ahead of, the
-- decision moves to the stored time; after the server's own clock has gone back,
-- the state moves to now, with its spend, and says so in moved.
local function read(key, clock)
  local value = call('GET', key)
  if not value then
    return { at = clock.now, rate = 0, period = 0, whole = 0, part = 0 }, clock.now
  end
  local at, rate, period, whole, part = match(value, '^(%-?%d+) ([1-9]%d*) ([1-9]%d*) (%d+) (%d+)$')
  if not at then
    error('ratelimit: the value of the key is not a state')
  end
  local s = { at = tonumber(at), rate = tonumber(rate), period = tonumber(period),
    whole = tonumber(whole), part = tonumber(part) }
  if s.at <= clock.now then
    return s, clock.now
  end
  if clock.callers then
    return s, s.at
  end
  s.at, s.moved = clock.now, true
  return s, clock.now
end

local function text(s)
  return format('%.0f %.0f %.0f %.0f %.0f', s.at, s.rate, s.period, s.whole, s.part)
end

-- write keeps s for life µs.
local function write(key, s, life)
  call('SET', key, text(s), 'PX', digits(ceil(life / 1000)))
end

-- rewrite keeps s, from which something was given back, for as long as before.
local function rewrite(key, s)
  if s.whole == 0 and s.part == 0 then
    call('DEL', key)
    return
  end
  call('SET', key, text(s), 'KEEPTTL')
end

-- Each algorithm defines these three:
--   step(key, l, clock, n)    ok, x, y, z of store.Reply, and a function that
--                             writes what must be kept, or nil
--   room(l, x, y, z)          how many events step would have admitted
--   refund(key, l, clock, c)  gives back what is still charged of c
-- with l = {rate, period, burst}, c = {at, due, rate, period, n}, and clock = {now, callers}.
local step, room, refund
