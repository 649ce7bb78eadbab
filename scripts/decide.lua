
-- One call: op on key at now, under limit, with n events. What follows n in its arguments
-- begins at ARGV[a]. Both driver.lua and batch.lua run it, and reply ok, x, y and z.
local ok, x, y, z, planned
if op == 'refund' then
  refund(key, limit, now, { at = ARGV[a] + 0, due = ARGV[a + 1] + 0, rate = ARGV[a + 2] + 0, period = ARGV[a + 3] + 0,
    over = ARGV[a + 4] == '1', n = n })
  x, y, z = 0, 0, 0
else
  if op == 'within' then
    limit.before = ARGV[a] + 0
  elseif op == 'charge' then
    limit.most = ARGV[a] + 0
  end
  ok, x, y, z, planned = plan(key, limit, now, callers, n)
  if not ok and n > 1 and op == 'upto' then
    ok, x, y, z, planned = plan(key, limit, now, callers, max(1, available(limit, x, y, z)))
  end
  if planned and op ~= 'peek' then
    commit(key, planned)
  end
end
