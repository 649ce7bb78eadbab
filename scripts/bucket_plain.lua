-- Token bucket and leaky bucket, the plain case: see plain_state.lua.
local product = (now - at) * rate
plain = product < 2 ^ 52 and whole + (part > 0 and 1 or 0) <= burst
if plain then
  local drained = floor(product / period)
  whole, part = whole - drained, part - (product - drained * period)
  if part < 0 then
    whole, part = whole - 1, part + period
  end
  if whole < 0 then
    whole, part = 0, 0
  end
  local level = (whole + n) * period + part
  plain = level < 2 ^ 52
  ok, y, z = whole + (part > 0 and 1 or 0) + n + reserved <= burst, whole, part
  whole, ttl = whole + n, ceil(level / rate)
end
