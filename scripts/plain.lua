-- The plain case of one request, a fast path before the general script: a take on a key that is
-- new, or whose state was counted under the same limit. This path makes no functions, and
-- divides only exact products. In any other case it writes nothing, and the script continues
-- below. A call that shares a script with others has the plain case of groups_plain.lua. KEYS,
-- ARGV: see groups.lua.
--
-- The lines of an algorithm replace the word STEP, and plain_write.lua replaces the word WRITE.
-- The lines of the algorithm set ok, x, y and z, as the functions of state.lua do, or plain to
-- false. If ok is true, they also set text, life and log, which say what to write. Both paths
-- decide alike. miniredis, which has no struct, always takes the general one.
if ARGV[1] == 'take' and rawget(_G, 'struct') and tonumber(ARGV[3]) then
  local call, try, floor, ceil, min, max = redis.call, redis.pcall, math.floor, math.ceil, math.min, math.max
  local pack, unpack, format = struct.pack, struct.unpack, string.format
  local key, rate, period, burst, n, reserved, now = KEYS[1], ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0, tonumber(ARGV[5]), 0, tonumber(ARGV[6])
  if not n then
    n, reserved = string.match(ARGV[5], '^(%d+)%+(%d+)$')
    n, reserved = n + 0, reserved + 0
  end
  if not now then
    local time = call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  local plain, ok, x, y, z, text, life, log = true
  STEP
  if plain and ok then
    local failed
    WRITE
    if not failed then
      return { 1, x, y, z }
    end
  elseif plain then
    return { 0, x, y, z }
  end
end
