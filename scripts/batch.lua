
-- The driver of many calls at once: each is decided and charged on its own, in their
-- order. It replaces driver.lua. The algorithm and decide.lua are in decider, above: it
-- makes the function that decides on calls of an operation.
--
-- KEYS  the keys of the states; one may come several times
-- ARGV  1 batch, or peek for a batch that was given up: nothing is done
--       2 the caller's clock in Unix µs; empty for the server's
--       of each run of calls that differ only in the key: how many they are, and the
--       arguments that driver.lua has of one, without a clock
-- Reply {ok (1 or 0), x, y, z} of each call, one after the other: store.Reply; of one
--       that failed, {the text of the error, 0, 0, 0}
-- Twin  store/memstore: the calls, one after the other.
--
-- A call that fails has written nothing, and the others go on. A value that is not ours
-- concerns only its own key. A fault of the server, such as a replica or no memory, meets
-- each call that writes, and none that denies. Without memory a refund may delete a key,
-- and the server accepts what is written after that.
if op == 'peek' then
  return {}
end
local now = tonumber(ARGV[2])
local callers = now ~= nil
if not callers then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local more = { within = 1, charge = 1, refund = 5 } -- arguments after n
local deciders, left, decide, limit, n, a = {}, 0

-- replies, run and done come from before: the replies that there are, where the next run
-- stands, and how many of its calls have their reply. See batch_plain.lua.

-- each decides on the calls that have no reply yet, up to one that fails.
local function each()
  for i = #replies / 4 + 1, #KEYS do
    if left == 0 then
      local name = ARGV[run + 1]
      left, n, a = ARGV[run] - done, ARGV[run + 5] + 0, run + 6
      limit = { rate = ARGV[run + 2] + 0, period = tonumber(ARGV[run + 3]) or ARGV[run + 3], burst = ARGV[run + 4] + 0 }
      run, done = a + (more[name] or 0), 0
      decide = deciders[name] or decider(name)
      deciders[name] = decide
    end
    left = left - 1
    replies[4 * i - 3], replies[4 * i - 2], replies[4 * i - 1], replies[4 * i] = decide(KEYS[i], limit, now, callers, n, a)
  end
end

-- A function that fails in miniredis loses the variables that it shares with others, but
-- not tables. All servers give pcall the error as text. Servers before 7, and miniredis,
-- put the place in the script before it.
repeat
  local fine, err = pcall(each)
  if not fine then
    local at, text = #replies, string.gsub(err, '^@?[%w_]*: ?%d+: %-?', '')
    replies[at + 1], replies[at + 2], replies[at + 3], replies[at + 4] = text, 0, 0, 0
  end
until fine
return replies
