
-- Shared by all scripts: exact integers, and numbers as bytes. Twin of internal/exact.
--
-- Lua's numbers are doubles: integers are exact up to 2^53. math.floor(x / c) is the
-- exact quotient of integers for x below 2^52. Times are Unix µs (2^51 in 2041), Periods
-- and durations µs, rates and bursts at most 2^31-1.

-- A script begins anew with each call, and each function that it makes costs 0.1 µs. A function
-- that only one operation needs is therefore made only for that operation. op is take, within (a
-- take whose turn must come in time), upto, charge or refund.

local call = redis.call
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local format = string.format -- with '%.0f' for all numbers: tostring keeps 14 digits

-- Stored numbers are doubles of 8 bytes. They are exact, and take a fifth of the time of text to
-- read and write. pack and unpack take a format of struct: '>', and a 'd' for each number.
-- miniredis has no struct, so there the numbers are text that ends with a newline.
local struct = rawget(_G, 'struct')
local pack, unpack = struct and struct.pack, struct and struct.unpack
if not struct then
  function pack(doubles, ...)
    return format(string.rep(' %.0f', #doubles - 1), ...) .. '\n'
  end
  function unpack(doubles, text)
    local values = { string.match(text, '^' .. string.rep(' (%-?%d+)', #doubles - 1) .. '\n()') }
    for i, value in ipairs(values) do
      values[i] = tonumber(value)
    end
    return _G.unpack(values)
  end
end

-- The longest Period, and how far from 1970 a time may be, in µs: redisstore's maxTime.
local DECADE, FAR = 3650 * 24 * 3600 * 1000000, 231 * 365 * 24 * 3600 * 1000000

-- muldiv returns the quotient and the remainder of a*b / c, for c below 2^50. If the product is
-- too large to be exact, muldiv divides it in pieces, which are as large as they can be. A
-- quotient above 2^53 is approximate, but still above everything that it is compared with.
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

-- windowend returns the end of the window of period that contains t.
local function windowend(t, period)
  return t - t % period + period
end
