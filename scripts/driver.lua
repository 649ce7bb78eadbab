
-- The driver: runs the algorithm above on one key.
--
-- KEYS  1 the key of the state
-- ARGV  1 operation: take, upto (take as many of n as fit), peek or refund
--       2 the caller's clock in Unix µs; empty for the server's
--       3 rate  4 period in µs  5 burst  6 n
--       of the charge to refund: 7 at and 8 due in Unix µs, 9 rate, 10 period in µs
-- Reply {ok (1 or 0), x, y, z}: store.Reply; what x, y and z mean stands with the
--       algorithm. A refund replies zeros.
-- Twin  store/memstore: Take, Peek and Refund.
local clock = { now = tonumber(ARGV[2]), callers = true }
if not clock.now then
  local time = call('TIME')
  clock = { now = time[1] * 1000000 + time[2], callers = false }
end
local limit = { rate = tonumber(ARGV[3]), period = tonumber(ARGV[4]), burst = tonumber(ARGV[5]) }
local n = tonumber(ARGV[6])

if ARGV[1] == 'refund' then
  clock.callers = true -- a refund moves no state in time
  refund(KEYS[1], limit, clock, { at = tonumber(ARGV[7]), due = tonumber(ARGV[8]),
    rate = tonumber(ARGV[9]), period = tonumber(ARGV[10]), n = n })
  return { 0, 0, 0, 0 }
end

local ok, x, y, z, keep = step(KEYS[1], limit, clock, n)
if not ok and n > 1 and ARGV[1] == 'upto' then
  ok, x, y, z, keep = step(KEYS[1], limit, clock, max(1, room(limit, x, y, z)))
end
if keep and ARGV[1] ~= 'peek' then
  keep()
end
return { ok and 1 or 0, x, y, z }
