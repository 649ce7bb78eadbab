
-- Sliding log. Twin of slidinglog.go.
-- KEYS, ARGV: see driver.lua.
-- Reply: x now (RetryAfter where it is a denial), y the events in the last
-- period, z ResetAfter.
--
-- The value is a list of blocks, oldest first, none of them empty. A block is a head
-- of seven numbers, base, run, gone, width, shift, cutoff and period, and its entries:
-- 6 bytes of time, counted from base, and in a wide block 6 bytes of events: those of
-- the block up to and with the entry; in a narrow one each entry is one event. run is the running count
-- of events before the block, gone the events that were cut from its front.
-- shift, cutoff and period count in the last block only: shift is added to all
-- times (the server's clock has gone back by that much), events up to cutoff were cut
-- by an admission, and period is that of the last one: the log ends a period after its
-- newest event, whatever the period is today. Times and cutoff are stored without
-- shift.

local room, refund

local BLOCK = 64 -- entries
local HEAD, HEADBYTES = '>ddddddd', 56
local byte, char = string.byte, string.char
local NARROW, WIDE = 6, 12 -- bytes of an entry
local SPAN = 2 ^ 48 -- µs that an entry can be later than its base
local RUN = 2 ^ 48 -- running counts start again at 0 here

local function parse(text)
  if not struct or #text > HEADBYTES then
    local base, run, gone, width, shift, cutoff, period, first = unpack(HEAD, text)
    if (width == NARROW or width == WIDE) and period > 0 then
      local len = (#text + 1 - first) / width
      if len >= 1 and len % 1 == 0 then
        return { text = text, base = base, run = run, gone = gone, width = width, shift = shift, cutoff = cutoff,
          period = period, first = first, len = len }
      end
    end
  end
  error('ratelimit: the value of the key is not a log')
end

-- render is the text of b with other entries.
local function render(b, entries)
  return pack(HEAD, b.base, b.run, b.gone, b.width, b.shift, b.cutoff, b.period) .. entries
end

-- entries are the bytes of entries from to to of b, none if from is above to.
local function entries(b, from, to)
  return string.sub(b.text, b.first + (from - 1) * b.width, b.first + to * b.width - 1)
end

local function uint48(text, p)
  local c, d, e, f, g, h = byte(text, p, p + 5)
  return ((((c * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
end

local function bytes48(v)
  local high = floor(v / 2 ^ 24)
  local low = v - high * 2 ^ 24
  return char(floor(high / 65536), floor(high / 256) % 256, high % 256, floor(low / 65536), floor(low / 256) % 256, low % 256)
end

-- search returns the first i of from to to for which yes(i), to + 1 if none;
-- where it is so for one i, it is so for all later ones.
local function search(from, to, yes)
  while from <= to do
    local middle = floor((from + to) / 2)
    if yes(middle) then
      to = middle - 1
    else
      from = middle + 1
    end
  end
  return from
end

-- time is the stored time of entry i of b, 1 to b.len.
local function time(b, i)
  return b.base + uint48(b.text, b.first + (i - 1) * b.width)
end

-- through is the running count after the first i entries of b.
local function through(b, i)
  if i == 0 or b.width == NARROW then
    return b.run + b.gone + i
  end
  return b.run + uint48(b.text, b.first + (i - 1) * WIDE + NARROW)
end

-- between is how many events lie between two running counts.
local function between(from, to)
  return (to - from) % RUN
end

-- open returns the log of a key, nil if it has none. Blocks are numbered from 0.
local function open(key)
  local log = { key = key, len = call('LLEN', key), parsed = {} }
  if log.len == 0 then
    return nil
  end
  function log.block(i)
    if not log.parsed[i] then
      log.parsed[i] = parse(call('LINDEX', key, i))
    end
    return log.parsed[i]
  end
  log.tail = log.block(log.len - 1)
  log.newest = time(log.tail, log.tail.len)
  log.total = through(log.tail, log.tail.len)
  return log
end

-- after returns the block and the entry of the first event later than t, which is
-- before the newest.
local function after(log, t)
  local b = search(1, log.len - 1, function(j)
    return time(log.block(j), 1) > t
  end) - 1
  local i = search(1, log.block(b).len, function(j)
    return time(log.block(b), j) > t
  end)
  if i > log.block(b).len then
    return b + 1, 1
  end
  return b, i
end

-- whengone is the time of the event with which need events will have left, where
-- gone have left already; the first of the others is in block b.
local function whengone(log, b, gone, need)
  b = search(b + 1, log.len - 1, function(j)
    return between(gone, through(log.block(j), 0)) >= need
  end) - 1
  local i = search(1, log.block(b).len, function(j)
    -- An entry that has left runs behind gone: nearly RUN events between.
    local events = between(gone, through(log.block(b), j))
    return need <= events and events < RUN / 2
  end)
  return time(log.block(b), i)
end

-- expire lets a log live for as long as its newest event counts.
local function expire(key, life)
  call('PEXPIRE', key, format('%.0f', ceil(life / 1000)))
end

-- block returns an empty block for an entry of n events at now.
local function block(now, run, n, shift, cutoff, period)
  return { base = now, run = run % RUN, gone = 0, width = n > 1 and WIDE or NARROW,
    shift = shift, cutoff = cutoff, period = period }
end

-- append is the text of b with these entries and one more, of n events at now;
-- events are those of the block before it.
local function append(b, entries, now, events, n)
  local entry = bytes48(now - b.base)
  if b.width == WIDE then
    entry = entry .. bytes48((events + n) % RUN)
  end
  return render(b, entries .. entry)
end

-- start writes a log of one entry, in place of one that has ended. A server checks its
-- memory at the first write of a script, and only if that is one that may need more:
-- hence RPUSH, here, and LSET, below, come before what forgets.
local function start(key, ended, l, now, n)
  local text = append(block(now, 0, n, 0, now - l.period, l.period), '', now, 0, n)
  call('RPUSH', key, text)
  if ended then
    call('UNLINK', key)
    call('RPUSH', key, text)
  end
  expire(key, l.period)
end

-- add charges n events at now, where entry i of block b is the first that counts.
-- It forgets what does not: one block of several, the entries of a single one.
local function add(key, log, l, now, n, b, i)
  local tail, cut = log.tail, 0
  now = now - tail.shift
  tail.cutoff = max(now - l.period, tail.cutoff)
  tail.period = l.period
  if log.len == 1 then
    cut = i - 1
  end
  tail.gone = through(tail, cut) - tail.run
  local kept = entries(tail, cut + 1, tail.len)
  if tail.len - cut < BLOCK and now - tail.base < SPAN and (n == 1 or tail.width == WIDE) then
    call('LSET', key, -1, append(tail, kept, now, log.total - tail.run, n))
  else
    call('LSET', key, -1, render(tail, kept))
    call('RPUSH', key, append(block(now, log.total, n, tail.shift, tail.cutoff, l.period), '', now, 0, n))
  end
  if b > 0 then
    call('LPOP', key)
  end
  expire(key, l.period)
end

-- plan decides on n events of a key. It returns the reply, and what commit has to
-- write, or nil: n events at now, or, without n, a tail that the server's clock has
-- moved.
local function plan(key, l, now, callers, n)
  local log, fits, force = open(key), n <= l.rate, op == 'charge'
  if not log then
    return fits, now, 0, 0, (fits or force) and { l = l, now = now, n = n }
  end
  local tail, moved = log.tail, false
  if log.newest + tail.shift > now then
    if callers then
      now = log.newest + tail.shift
    else
      tail.shift, moved = now - log.newest, true
    end
  end
  local dead = max(now - tail.shift - l.period, tail.cutoff) -- the latest time that does not count
  if log.newest <= dead or log.newest + tail.period <= now - tail.shift then
    return fits, now, 0, 0, (fits or force) and { ended = true, l = l, now = now, n = n }
  end
  local b, i = after(log, dead)
  local gone = through(log.block(b), i - 1)
  local count, reset = between(gone, log.total), log.newest + tail.shift + l.period - now
  if count + n <= l.rate then
    return true, now, count, reset, { log = log, l = l, now = now, n = n, b = b, i = i }
  end
  if force then
    return false, now, count, reset, { log = log, l = l, now = now, n = n, b = b, i = i }
  end
  local x = fits and whengone(log, b, gone, count + n - l.rate) + tail.shift + l.period - now or now
  return false, x, count, reset, moved and { log = log, reset = reset }
end

-- commit writes what plan has said.
local function commit(key, p)
  if not p.log then
    start(key, p.ended, p.l, p.now, p.n)
  elseif p.n then
    add(key, p.log, p.l, p.now, p.n, p.b, p.i)
  else
    call('LSET', key, -1, render(p.log.tail, entries(p.log.tail, 1, p.log.tail.len)))
    expire(key, p.reset)
  end
end

if op == 'upto' then
  function room(l, _, count)
    return max(0, l.rate - count)
  end
elseif op == 'refund' then
  -- lastuntil returns the block and the entry of the last event up to t, a block of
  -- -1 if there is none.
  local function lastuntil(log, t)
    local b = search(0, log.len - 1, function(j)
      return time(log.block(j), 1) > t
    end) - 1
    return b, b < 0 and 0 or search(1, log.block(b).len, function(j)
      return time(log.block(b), j) > t
    end) - 1
  end

  -- remove takes at most n events from entry i of block at, and returns how many.
  local function remove(key, log, at, i, n)
    local b = log.block(at)
    local count = between(through(b, i - 1), through(b, i))
    n = min(n, count)
    local kept = { entries(b, 1, i - 1) }
    for j = n == count and i + 1 or i, b.len do
      kept[#kept + 1] = b.width == NARROW and entries(b, j, j)
        or string.sub(entries(b, j, j), 1, NARROW) .. bytes48((through(b, j) - b.run - n) % RUN)
    end
    for j = at + 1, log.len - 1 do
      local later = log.block(j)
      later.run = (later.run - n) % RUN
      call('LSET', key, j, render(later, entries(later, 1, later.len)))
    end
    kept = table.concat(kept)
    call('LSET', key, at, kept == '' and '' or render(b, kept)) -- no block is '', so that LREM finds it
    if kept == '' then
      call('LREM', key, 1, '')
      if at == log.len - 1 and at > 0 then -- shift, cutoff and period go with the last block
        local tail = log.block(at - 1)
        tail.shift, tail.cutoff, tail.period = b.shift, b.cutoff, b.period
        call('LSET', key, -1, render(tail, entries(tail, 1, tail.len)))
      end
    end
    return n
  end

  -- Of the entries of one instant, the last one is given back first, and no more than
  -- a block has.
  function refund(key, l, now, c)
    local left = c.n
    for _ = 1, BLOCK do
      local log = open(key)
      if left == 0 or not log then
        return
      end
      local at = c.at - log.tail.shift
      local dead = max(max(now - log.tail.shift, log.newest) - l.period, log.tail.cutoff)
      if at <= dead or at > log.newest or log.newest + log.tail.period <= now - log.tail.shift then
        return
      end
      local b, i = lastuntil(log, at)
      if b < 0 or time(log.block(b), i) ~= at then
        return
      end
      left = left - remove(key, log, b, i, left)
    end
  end
end
