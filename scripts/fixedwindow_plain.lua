-- Fixed window, the plain case: see plain_state.lua.
local left = period - now % period
plain = part == 0
y, z = 0, 0
if whole > 0 and at >= now + left - period then
  y, z = whole, left
end
ok, whole, ttl = y + n + reserved <= rate, y + n, left
