-- Sliding window counter, the plain case: see plain_state.lua.
local left = period - now % period
local start, prev, cur = now + left - period, 0, 0
if at >= start then
  prev, cur = part, whole
elseif at >= start - period then
  prev = whole
end
local product = min(prev, rate) * left
plain = product < 2 ^ 52
ok, y, z = ceil(product / period) + cur + n + reserved <= rate, prev, cur
whole, part, ttl = cur + n, prev, left + period
