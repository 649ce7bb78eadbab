-- The plain case of an algorithm whose state is five numbers: see plain.lua. A key that does
-- not exist is new. The lines of the algorithm replace the word OWN. They change whole and part
-- to those of the state in which n events are charged at now, and set ok, y, z and ttl as the
-- functions of state.lua do, or set plain to false.
local value, at, whole, part, ttl = try('GET', key), now, 0, 0
if value then
  plain = #value == 40
  if plain then
    local r, p
    at, r, p, whole, part = unpack('>ddddd', value)
    plain = r == rate and p == period and at <= now and at > -231 * 365 * 24 * 3600 * 1000000
      and whole >= 0 and whole < 2 ^ 32 and part >= 0 and part < 2 ^ 49 and at % 1 + whole % 1 + part % 1 == 0
  end
end
if plain then
  OWN
  x = now
  if plain and ok then
    text, life = pack('>ddddd', now, rate, period, whole, part), format('%.0f', ceil(ttl / 1000))
  end
end
