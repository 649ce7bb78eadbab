
-- The state of one key, for the algorithms whose state is five numbers. Twin of store.State, and
-- of what store/memstore does around a rule.
--
-- The numbers are at, rate, period, whole and part. If the key does not exist, nothing is spent.
-- rate and period are those of the limit that the state was counted under. Numbers outside the
-- ranges of store.Limit and store.State are not a state. Each algorithm defines:
--
--   step(s, l, now, n)         ok, x, y, z of store.Reply, and the whole and the part of
--                              the state in which n events are charged at now under l
--   ttl(s)                     how long after s.at the state matters, in µs
--   available(l, x, y, z)      how many events step would have admitted
--   overdrawn(whole, l, most)  the whole of a state that is charged past the limit
--   giveback(s, l, now, c)     takes what is still charged of c from s; true if it did
--   sound(at, period, part)    whether these numbers can belong together; nil if any can

-- read returns the state of a key, and the time of the decision, which is never before that of
-- the state. With a caller's clock, which may be behind the clocks of others, the decision moves
-- to the time of the state. If the server's own clock has gone back, the state moves to now with
-- its spend, and read sets s.moved.
local function read(key, now, callers)
  local value = call('GET', key)
  if not value then
    return { at = now, rate = 0, period = 0, whole = 0, part = 0 }, now
  end
  local at, rate, period, whole, part
  if #value == 40 or not struct then
    at, rate, period, whole, part = unpack('>ddddd', value)
  end
  if not (part and rate >= 1 and rate < 2 ^ 31 and period >= 1000 and period <= DECADE and whole >= 0 and whole < 2 ^ 32
    and part >= 0 and part < 2 ^ 49 and at > -FAR and at < FAR and at % 1 + rate % 1 + period % 1 + whole % 1 + part % 1 == 0
    and (not sound or sound(at, period, part))) then
    error('ratelimit: the value of the key is not a state')
  end
  local s = { at = at, rate = rate, period = period, whole = whole, part = part }
  if at <= now then
    return s, now
  elseif callers then
    return s, at
  end
  s.at, s.moved = now, true
  return s, now
end

-- plan runs step on a key. It returns the reply, and the state that commit has to write
-- or nil.
local function plan(key, l, now, callers, n)
  local s
  s, now = read(key, now, callers)
  local ok, x, y, z, whole, part = step(s, l, now, n)
  if not ok and op == 'charge' then
    x, whole = now, overdrawn(whole, l, l.most)
  end
  if ok or op == 'charge' then
    s.at, s.rate, s.period, s.whole, s.part = now, l.rate, l.period, whole, part
    return ok, x, y, z, s
  end
  return ok, x, y, z, s.moved and s
end

-- commit writes what plan returned. It bounds the ttl, because that of a value that no rule has
-- written may be longer than a server can count.
local function commit(key, s)
  call('SET', key, pack('>ddddd', s.at, s.rate, s.period, s.whole, s.part), 'PX', format('%.0f', ceil(min(ttl(s), FAR) / 1000)))
end

-- refund refunds what is still charged of c. The key still expires when it would have expired
-- without the refund. refund moves no state in time, and leaves an ended one alone.
if op == 'refund' then
  function refund(key, l, now, c)
    local s
    s, now = read(key, now, true)
    if s.rate == 0 or now - s.at >= ttl(s) or not giveback(s, l, now, c) then
      return
    elseif s.whole == 0 and s.part == 0 then
      call('DEL', key)
    else
      call('SET', key, pack('>ddddd', s.at, s.rate, s.period, s.whole, s.part), 'KEEPTTL')
    end
  end
end
