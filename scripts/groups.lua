
-- The driver decides on groups of requests, one group after the other. A group is charged as a
-- whole or not at all. A call for one limit is a group of one request, and an All is a group of
-- several. The rules are defined above: rules[i](op) makes the functions of rule i that the
-- operation op needs.
--
-- KEYS  the keys of the states, group by group. The keys of a group differ
-- ARGV  1 'groups', or 'none' for calls that were given up, so that nothing is done. For a
--       request that is alone in its script, the operation: see below
--       2 the caller's clock in Unix µs; empty for the server's
--       for each run of groups that differ only in their keys: how many groups, how many
--       requests each of them has (negated for an alternative, which is decided only if the
--       group before it was denied), and for each request:
--       what    the number of its rule. Unless the request is a plain take, a blank and the
--               operation follow, with a blank before each argument of the operation
--       rate
--       period  in µs; for a calendar, followed by six edges of its windows in Unix seconds,
--               three up to the caller's time and three after it; for slots, by their holder
--       burst
--       n       or n+reserved: decided as a request for both together, which charges n
--       For a request that is alone: 1 the operation with its arguments, 2 rate, 3 period,
--       4 burst, 5 n, 6 the caller's clock; absent for the server's
-- The operations, and their arguments:
--       take    n events, or none. before: in less than how many µs the turn must come
--       shadow  the same, but a denial does not keep others from being charged. before
--       look    charges nothing, and a denial does not keep others from being charged. before
--       gate    charges nothing, but a denial keeps all others from being charged. before. Only
--               gates ask about a banned key, so a denial moves its state, as that of a take does
--       upto    as many of n events as fit
--       charge  n events whether they fit or not. most: the most that the state may hold
--       refund  of n events, alone in its group. at and due of their charge in Unix µs, its
--               rate, its period in µs, and 1 if it left a bucket above its burst, or else 0
-- Reply {ok (1 or 0), x, y, z} for each request: see store.Reply; the algorithm defines x, y
--       and z. A refund replies zeros, and an alternative that is not decided {2, 0, 0, 0}.
--       A group that failed replies {the text of the error, 0 ...}; if the script has no other
--       group, the script fails.
-- Twin  store/memstore, one group after the other.
--
-- A denied key is written if the server's clock has gone back: see state.lua. A group that fails
-- has written nothing, and the other groups are still decided. A value that is not ours affects
-- only its own group. If the server refuses writes, because it is a replica or out of memory,
-- each group that writes fails, and a group that is denied does not. Only the first write of a
-- script is refused: without memory, a refund may delete a key, and the server accepts the
-- writes after it.
local alone = ARGV[1] ~= 'groups'
if ARGV[1] == 'none' then
  return {}
end
local clock = tonumber(ARGV[alone and 6 or 2])
local callers = clock ~= nil
now = now or clock
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- request reads the request whose what is given and whose rate is ARGV[a]. It returns the number
-- of its rule, the operation that its functions are made for, its own operation, its limit, n,
-- the charge that a refund is of, and how many events are reserved.
local function request(what, a)
  local number, name, more = 1, what, nil
  if not alone or string.find(what, ' ', 1, true) then
    number, name, more = string.match(what, '^(%d*) ?(%a*) ?(.*)$')
  end
  local op, n, charged, reserved = name, tonumber(ARGV[a + 3]), nil, 0
  if not n then
    n, reserved = string.match(ARGV[a + 3], '^(%d+)%+(%d+)$')
    n, reserved = n + 0, reserved + 0
  end
  local l = { rate = ARGV[a] + 0, period = tonumber(ARGV[a + 1]) or ARGV[a + 1], burst = ARGV[a + 2] + 0 }
  if name == 'charge' then
    l.most = more + 0
  elseif name == 'refund' then
    local at, due, rate, period, over = string.match(more, '^(%S+) (%S+) (%S+) (%S+) (%S+)$')
    charged = { at = at + 0, due = due + 0, rate = rate + 0, period = period + 0, over = over == '1', n = n }
  elseif name ~= 'upto' then
    l.before = more and tonumber(more)
    op = l.before and 'within' or 'take'
  end
  return number, op, name, l, n, charged, reserved
end

if alone then
  local _, op, name, l, n, charged, reserved = request(ARGV[1], 2)
  local plan, commit, available, refund = rules[1](op)
  if charged then
    refund(KEYS[1], l, now, charged)
    return { 0, 0, 0, 0 }
  end
  local ok, x, y, z, planned = plan(KEYS[1], l, now, callers, n + reserved)
  if not ok and n > 1 and op == 'upto' then
    n = max(1, available(l, x, y, z) - reserved)
    ok, x, y, z, planned = plan(KEYS[1], l, now, callers, n + reserved)
  end
  if ok and reserved > 0 then
    planned = select(5, plan(KEYS[1], l, now, callers, n))
  end
  if planned and name ~= 'look' and not (ok and name == 'gate') then
    commit(KEYS[1], planned)
  end
  return { ok and 1 or 0, x, y, z }
end

-- groups_plain.lua may have decided on some groups. replies has their replies, ARGV[run] begins
-- the run of the next group, done is how many groups of that run have replies, and admitted
-- reports whether the last group was admitted. These are kept in a table, because in miniredis
-- a function that fails loses the variables that it shares with others.
local at, made = { run = run, done = done, admitted = admitted }, {}

-- read reads a request as request does, and adds the functions of its rule.
local function read(what, a)
  local number, op, name, l, n, charged, reserved = request(what, a)
  local functions = made[number .. op]
  if not functions then
    functions = { rules[number + 0](op) }
    made[number .. op] = functions
  end
  return {
    name = name, limit = l, n = n, reserved = reserved, charged = charged, plan = functions[1], commit = functions[2], available = functions[3], refund = functions[4],
    votes = name ~= 'shadow' and name ~= 'look' and name ~= 'charge',
  }
end

-- ask decides on a request for a key. It returns the reply, and what to write if it is charged.
local function ask(r, key)
  if r.charged then
    r.refund(key, r.limit, now, r.charged)
    return false, 0, 0, 0
  end
  local n, reserved = r.n, r.reserved
  local ok, x, y, z, planned = r.plan(key, r.limit, now, callers, n + reserved)
  if not ok and n > 1 and r.name == 'upto' then
    n = max(1, r.available(r.limit, x, y, z) - reserved)
    ok, x, y, z, planned = r.plan(key, r.limit, now, callers, n + reserved)
  end
  if ok and reserved > 0 then
    planned = select(5, r.plan(key, r.limit, now, callers, n))
  end
  return ok, x, y, z, r.name ~= 'look' and not (ok and r.name == 'gate') and planned
end

-- group decides on the requests of a group, whose keys follow KEYS[k]. It reports whether all
-- requests that vote are admitted.
local function group(requests, k)
  local found, planned, all = {}, {}, true
  for i, r in ipairs(requests) do
    local ok, x, y, z, p = ask(r, KEYS[k + i])
    found[4 * i - 3], found[4 * i - 2], found[4 * i - 1], found[4 * i] = ok and 1 or 0, x, y, z
    all, planned[i] = all and (ok or not r.votes), p
  end
  for i, r in ipairs(requests) do
    local p, key = planned[i], KEYS[k + i]
    if p and (all or found[4 * i - 3] == 0 and r.name ~= 'charge') then -- after a denial, p charges nothing
      r.commit(key, p)
    elseif p and p.moved and r.name ~= 'charge' then -- only moves: the plan for more events than any limit admits
      r.commit(key, select(5, r.plan(key, r.limit, now, callers, 2 ^ 31)))
    end
  end
  for i, v in ipairs(found) do
    replies[4 * k + i] = v
  end
  return all
end

-- each decides on the groups that have no replies yet, up to one that fails.
local function each()
  while ARGV[at.run] do
    local run, requests = at.run, at.requests
    local count, size = ARGV[run] + 0, ARGV[run + 1] + 0
    local alternative = size < 0
    size = math.abs(size)
    if not requests then
      requests = {}
      for i = 1, size do
        requests[i] = read(ARGV[run + 5 * i - 3], run + 5 * i - 2)
      end
      at.requests = requests
    end
    while at.done < count do
      local k = #replies / 4
      if alternative and at.admitted then
        for i = k + 1, k + size do
          replies[4 * i - 3], replies[4 * i - 2], replies[4 * i - 1], replies[4 * i] = 2, 0, 0, 0
        end
      elseif size > 1 then
        at.admitted = group(requests, k)
      else
        local r, key = requests[1], KEYS[k + 1]
        local ok, x, y, z, planned = ask(r, key)
        if planned then
          r.commit(key, planned)
        end
        replies[4 * k + 1], replies[4 * k + 2], replies[4 * k + 3], replies[4 * k + 4] = ok and 1 or 0, x, y, z
        at.admitted = ok or not r.votes
      end
      at.done = at.done + 1
    end
    at.run, at.done, at.requests = run + 2 + 5 * size, 0, nil
  end
end

if #KEYS == ARGV[4] + 0 then
  each()
  return replies
end

-- With all servers, pcall returns the error as text. Servers before 7, and miniredis, put the
-- position in the script before the error.
repeat
  local fine, err = pcall(each)
  if not fine then
    if not at.requests then
      error(err)
    end
    replies[#replies + 1] = string.gsub(err, '^@?[%w_]*: ?%d+: %-?', '')
    for _ = 2, 4 * #at.requests do
      replies[#replies + 1] = 0
    end
    at.done, at.admitted = at.done + 1, true -- so that no alternative to it is decided
  end
until fine
return replies
