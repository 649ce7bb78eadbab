-- The plain case, in a straight line before the general script: a take on a key that is
-- new, or whose state was counted under the same limit. It makes no functions, and divides
-- no product that is not exact. Any other case goes on below, and nothing is written yet.
--
-- plain_state.lua stands in place of the word READ, and the lines of an algorithm in place
-- of the word STEP. They turn whole and part into those of the state in which n events are
-- charged at now. They set ok, y, z and ttl as the functions of state.lua do, or plain to
-- false. Both ways decide alike: miniredis has no struct, and so runs all in the general one.
if ARGV[1] == 'take' and rawget(_G, 'struct') and tonumber(ARGV[3]) then
  local call, floor, ceil, min = redis.call, math.floor, math.ceil, math.min
  local key, rate, period, burst, n, now = KEYS[1], ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0, ARGV[5] + 0, tonumber(ARGV[6])
  if not now then
    local time = call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  local value = call('GET', key)
  READ
  local ok, y, z, ttl
  if plain then
    STEP
  end
  if plain and ok then
    call('SET', key, struct.pack('>ddddd', now, rate, period, whole, part), 'PX', string.format('%.0f', ceil(ttl / 1000)))
    return { 1, now, y, z }
  elseif plain then
    return { 0, now, y, z }
  end
end
