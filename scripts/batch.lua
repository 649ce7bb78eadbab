
-- The driver of many calls at once: each is decided and charged on its own, in their
-- order. It replaces driver.lua.
--
-- KEYS  the keys of the states; one may come several times
-- ARGV  1 operation: take or peek
--       of each run of calls that differ only in the key: how many they are, rate,
--       period in µs, burst, n
--       the last, after them: the caller's clock in Unix µs; none for the server's
-- Reply {ok (1 or 0), x, y, z} of each call, one after the other: store.Reply; of one
--       that failed, {the text of the error, 0, 0, 0}
-- Twin  store/memstore: Take, one after the other.
--
-- A call that fails has written nothing, and the others go on. A value that is not ours
-- concerns only its own key. A fault of the server, such as a replica or no memory, meets
-- each call that writes, and none that denies.
local now = tonumber(ARGV[#ARGV % 5 == 2 and #ARGV])
local callers = now ~= nil
if not callers then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local replies, a, left, limit, n = {}, -3, 0

-- reply appends the reply of a call.
local function reply(first, x, y, z)
  local at = #replies
  replies[at + 1], replies[at + 2], replies[at + 3], replies[at + 4] = first, x, y, z
end

-- each decides on the calls that have no reply yet, up to one that fails.
local function each()
  for i = #replies / 4 + 1, #KEYS do
    if left == 0 then
      a = a + 5
      left, n = ARGV[a] + 0, ARGV[a + 4] + 0
      limit = { rate = ARGV[a + 1] + 0, period = ARGV[a + 2] + 0, burst = ARGV[a + 3] + 0 }
    end
    left = left - 1
    local key = KEYS[i]
    local ok, x, y, z, planned = plan(key, limit, now, callers, n)
    if planned and op ~= 'peek' then
      commit(key, planned)
    end
    reply(ok and 1 or 0, x, y, z)
  end
end

-- A function that fails in miniredis loses the variables that it shares with others, but
-- not tables. All servers give pcall the error as text. Servers before 7, and miniredis,
-- put the place in the script before it.
repeat
  local fine, err = pcall(each)
  if not fine then
    local text = string.gsub(err, '^@?[%w_]*: ?%d+: %-?', '')
    reply(text, 0, 0, 0)
  end
until fine
return replies
