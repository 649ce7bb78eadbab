-- The plain case of groups.lua, as plain.lua is that of one request. It decides on groups in
-- their order, up to the first that fails or has a request that is not plain. That group has
-- written nothing, and groups.lua continues with it.
local replies, run, done, now, admitted = {}, 3, 0
if ARGV[1] == 'groups' and rawget(_G, 'struct') then
  local call, try, floor, ceil, min, max = redis.call, redis.pcall, math.floor, math.ceil, math.min, math.max
  local pack, unpack, format = struct.pack, struct.unpack, string.format
  local k, fine = 0, true
  now = tonumber(ARGV[2])
  if not now then
    local time = call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  while fine and ARGV[run] do
    local count, size, logs, rule, rate, period, burst, n, reserved = ARGV[run] + 0, ARGV[run + 1] + 0
    if size < 0 then -- an alternative
      size = -size
      if admitted then
        for i = k + 1, k + size do
          replies[4 * i - 3], replies[4 * i - 2], replies[4 * i - 1], replies[4 * i] = 2, 0, 0, 0
        end
        k, done = k + size, 1
      end
    end
    while fine and done < count do
      local all, texts, lives, failed = true
      if size > 1 then
        texts, lives = {}, {}
      end
      for i = 1, size do
        if not rule or size > 1 then
          local a = run + 5 * i - 3
          rule, rate, period, burst, n, reserved = ARGV[a], ARGV[a + 1] + 0, tonumber(ARGV[a + 2]), ARGV[a + 3] + 0, tonumber(ARGV[a + 4]), 0
          if not n then
            n, reserved = string.match(ARGV[a + 4], '^(%d+)%+(%d+)$')
            n, reserved = n + 0, reserved + 0
          end
        end
        local key, plain, ok, x, y, z, text, life, log = KEYS[k + i], period ~= nil
        if plain then
          STEP
        end
        if not plain then
          fine = false
          break
        end
        local r = 4 * (k + i)
        replies[r - 3], replies[r - 2], replies[r - 1], replies[r] = ok and 1 or 0, x, y, z
        if not ok then
          all = false
        elseif size == 1 then
          WRITE
          fine = not failed
        elseif all then
          texts[i], lives[i] = text, life
          if log then
            logs = logs or {}
            logs[i] = log
          end
        end
      end
      if fine and size > 1 and all then
        for i = 1, size do
          local key, text, life, log = KEYS[k + i], texts[i], lives[i], logs and logs[i]
          WRITE
          if failed then
            assert(i == 1, failed) -- a server refuses the first write of a script, or none
            fine = false
            break
          end
        end
      end
      if fine then
        k, done, admitted = k + size, done + 1, all
      end
    end
    if fine then
      run, done = run + 2 + 5 * size, 0
    end
  end
  if fine then
    return replies
  end
  for i = #replies, 4 * k + 1, -1 do
    replies[i] = nil
  end
end
