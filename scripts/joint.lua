
-- The driver of several keys: all that are asked for events are charged, or none. A shadow
-- is charged with them if it fits, and keeps none from being charged. A look charges
-- nothing, and one that is a gate keeps all from being charged if it denies. A denied key
-- is written too if the server's clock has gone back: see state.lua. Each rule comes
-- before the driver, in a block of its own, and has put its plan and its commit into
-- rules.
--
-- KEYS  the keys of the states, all different
-- ARGV  1 operation: take, within (take if each turn comes in time) or peek
--       of each key, in their order: the number of its rule, rate, period as in
--       driver.lua, burst, n (-n of a shadow; 0 of a look, which is answered for one event,
--       and 0.5 of one that is a gate)
--       of within, of each key: in less than how many µs its turn must come, or 0
--       the last, after them: the caller's clock in Unix µs; none for the server's
-- Reply {ok (1 or 0), x, y, z} of each key, one after the other: store.Reply
-- Twin  store/memstore: TakeAll.
local now = tonumber(ARGV[2 + (op == 'within' and 6 or 5) * #KEYS])
local callers = now ~= nil
if not callers then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local replies, planned, all = {}, {}, true
for i, key in ipairs(KEYS) do
  local a = 5 * i - 3
  local limit = { rate = ARGV[a + 1] + 0, period = tonumber(ARGV[a + 2]) or ARGV[a + 2], burst = ARGV[a + 3] + 0 }
  if op == 'within' then
    limit.before = ARGV[1 + 5 * #KEYS + i] + 0
  end
  local n = ARGV[a + 4] + 0
  local ok, x, y, z, p = rules[ARGV[a] + 0].plan(key, limit, now, callers, max(1, n, -n))
  replies[4 * i - 3], replies[4 * i - 2], replies[4 * i - 1], replies[4 * i] = ok and 1 or 0, x, y, z
  planned[i] = (n >= 1 or n < 0) and p
  all = all and (ok or n <= 0)
end
for i, key in ipairs(KEYS) do
  local denied = replies[4 * i - 3] == 0 -- the plan of a denied key charges nothing
  if planned[i] and (all or denied) and op ~= 'peek' then
    rules[ARGV[5 * i - 3] + 0].commit(key, planned[i])
  end
end
return replies
