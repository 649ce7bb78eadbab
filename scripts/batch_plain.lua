-- The plain case of batch.lua, as plain.lua is that of driver.lua. It makes calls in their
-- order, up to the first that is not plain or fails. batch.lua goes on there, and makes that
-- one again: it has written nothing.
if ARGV[1] == 'batch' and rawget(_G, 'struct') then
  local call, try, floor, ceil, min = redis.call, redis.pcall, math.floor, math.ceil, math.min
  local left, rate, period, burst, n, now = 0, nil, nil, nil, nil, tonumber(ARGV[2])
  if not now then
    local time = call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  for i, key in ipairs(KEYS) do
    if left == 0 then
      if i > 1 then
        run, done = run + 6, 0
      end
      rate, period, burst, n = ARGV[run + 2] + 0, tonumber(ARGV[run + 3]), ARGV[run + 4] + 0, ARGV[run + 5] + 0
      if ARGV[run + 1] ~= 'take' or not period then
        break
      end
      left = ARGV[run] + 0
    end
    local value = try('GET', key)
    READ
    local ok, y, z, ttl
    if plain then
      STEP
    end
    if plain and ok then
      plain = not try('SET', key, struct.pack('>ddddd', now, rate, period, whole, part), 'PX', string.format('%.0f', ceil(ttl / 1000))).err
    end
    if not plain then
      break
    end
    replies[4 * i - 3], replies[4 * i - 2], replies[4 * i - 1], replies[4 * i] = ok and 1 or 0, now, y, z
    left, done = left - 1, done + 1
  end
  if #replies == 4 * #KEYS then
    return replies
  end
end
