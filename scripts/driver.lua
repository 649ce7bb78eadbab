
-- The driver: runs the algorithm above on one key. decide.lua follows it.
--
-- KEYS  1 the key of the state
-- ARGV  1 operation: take, within (take n if their turn comes in time), upto (take as
--       many of n as fit), charge (take n whether they fit or not), peek or refund
--       2 rate  3 period in µs, of a calendar followed by six edges of its windows in Unix
--       seconds: three up to the caller's time and three after it; of slots, by who holds them
--       4 burst  5 n
--       of within: 6 in less than how many µs the turn must come
--       of charge: 6 the most events that the state may hold
--       of refund: of the charge, 6 at and 7 due in Unix µs, 8 rate, 9 period in µs,
--       10 1 if it left a bucket above its burst, else 0
--       the last, after them: the caller's clock in Unix µs; none for the server's
-- Reply {ok (1 or 0), x, y, z}: store.Reply; the algorithm defines x, y and z. A refund
--       replies zeros.
-- Twin  store/memstore: Take (within is that of a Limit with a Before), TakeUpTo,
--       Overdraw, Peek and Refund.
local key, n, a = KEYS[1], ARGV[5] + 0, 6
local limit = { rate = ARGV[2] + 0, period = tonumber(ARGV[3]) or ARGV[3], burst = ARGV[4] + 0 }
local now = tonumber(ARGV[op == 'refund' and 11 or (op == 'charge' or op == 'within') and 7 or 6])
local callers = now ~= nil
if not callers then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
