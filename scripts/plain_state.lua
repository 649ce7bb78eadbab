-- What a value says in the plain case: see plain.lua. A key that does not exist is new.
local plain, at, whole, part = true, now, 0, 0
if value then
  plain = #value == 40
  if plain then
    local r, p
    at, r, p, whole, part = struct.unpack('>ddddd', value)
    plain = r == rate and p == period and at <= now and at > -231 * 365 * 24 * 3600 * 1000000
      and whole >= 0 and whole < 2 ^ 32 and part >= 0 and part < 2 ^ 49 and at % 1 + whole % 1 + part % 1 == 0
  end
end
