-- The plain case of joint.lua, as plain.lua is that of driver.lua: all keys are plain, and
-- none is of a shadow, a look or a gate. The lines of each rule stand in place of the word STEP.
if ARGV[1] == 'take' and rawget(_G, 'struct') then
  local call, floor, ceil, min = redis.call, math.floor, math.ceil, math.min
  local now, replies, states, lives, all = tonumber(ARGV[2 + 5 * #KEYS]), {}, {}, {}, true
  if not now then
    local time = call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  for i, key in ipairs(KEYS) do
    local a = 5 * i - 3
    local rule, rate, period, burst, n = ARGV[a], ARGV[a + 1] + 0, tonumber(ARGV[a + 2]), ARGV[a + 3] + 0, ARGV[a + 4] + 0
    if not period or n < 1 then
      break
    end
    local value = call('GET', key)
    READ
    local ok, y, z, ttl
    if plain then
      STEP
    end
    if not plain then
      break
    end
    replies[4 * i - 3], replies[4 * i - 2], replies[4 * i - 1], replies[4 * i] = ok and 1 or 0, now, y, z
    all = all and ok
    if all then
      states[i], lives[i] = struct.pack('>ddddd', now, rate, period, whole, part), string.format('%.0f', ceil(ttl / 1000))
    end
  end
  if #replies == 4 * #KEYS then
    if all then
      for i, key in ipairs(KEYS) do
        call('SET', key, states[i], 'PX', lives[i])
      end
    end
    return replies
  end
end
