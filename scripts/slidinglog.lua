
-- Sliding log. Twin of slidinglog.go.
-- KEYS, ARGV: see groups.lua.
-- Reply: x now, or RetryAfter of a denial; y the events in the last period; z ResetAfter.
--
-- The value is a list of blocks, oldest first. A block is a head of five numbers (base, run,
-- gone, width and back) and its entries. An entry begins with 6 bytes of time, counted from
-- base. In a wide block, 6 bytes of events follow: the number of events in the block up to and
-- including the entry. In a narrow block, each entry is one event. run is the running count of
-- all events before the block. gone is how many events were cut from the front of the block.
--
-- Blocks have numbers, from 1 on. A refunded event is removed from its block, but later runs
-- do not change, because there could be many. Instead, the refund is counted in back. The back
-- of block p is how many events were refunded from the blocks p to p + lowbit(p) - 1, where
-- lowbit(p) is the largest power of 2 that divides p (P. Fenwick, 1994). Each refund is counted
-- in at most one block per power of 2, and the number of events missing from a block on is the
-- sum of as many numbers. An older block that is empty stays, for its back. If two empty blocks
-- are the halves of a larger range, the first stands for both, and the other is '' in the list.
-- Such a range has 2, 4, 8 ... numbers and begins at a multiple of its length.
--
-- The last block is never empty, and a refund from it leaves no trace. Its back therefore has
-- another meaning: the number of the newest other block with a refund. Its head has four more
-- numbers: first, shift, cutoff and period.
--
-- first   the number of the first block in the list
-- shift   added to all times, because the server's clock has gone back by that much
-- cutoff  events up to this time were cut by an admission
-- period  the period of the last admission
--
-- The log ends that period after its newest event, whatever the current period is. Times and
-- cutoff are stored without shift.

local available, refund

local BLOCK = 64 -- entries
local HEAD, LAST = '>ddddd', '>ddddddddd'
local byte, char = string.byte, string.char
local NARROW, WIDE = 6, 12 -- bytes of an entry
local SPAN = 2 ^ 48 -- an entry is less than this many µs after the base
local RUN = 2 ^ 48 -- where running counts start again at 0

-- parse returns a block, or the last one. It fails if text is nil or not a block.
local function parse(text, last)
  if text and (not struct or #text >= (last and 72 or 40)) then
    local base, run, gone, width, back, from, first, shift, cutoff, period
    if last then
      base, run, gone, width, back, first, shift, cutoff, period, from = unpack(LAST, text)
    else
      base, run, gone, width, back, from = unpack(HEAD, text)
    end
    local len = from and (#text + 1 - from) / width
    if len and (width == NARROW or width == WIDE) and base > -FAR and base < FAR and run >= 0 and run < RUN and gone >= 0 and gone < RUN
      and back >= 0 and back < RUN and len <= BLOCK and (base + run + gone + back + len) % 1 == 0
      and (not last or len > 0 and first >= 1 and first < RUN and shift > -FAR and shift < FAR and cutoff > -2 * FAR and cutoff < FAR
      and period >= 1000 and period <= DECADE and first % 1 + (shift + cutoff + period) % 1 == 0) then
      return { text = text, from = from, len = len, base = base, run = run, gone = gone, width = width, back = back,
        first = first, shift = shift, cutoff = cutoff, period = period }
    end
  end
  error('ratelimit: the value of the key is not a log')
end

-- render returns the text of b with these entries.
local function render(b, entries)
  if b.first then
    return pack(LAST, b.base, b.run, b.gone, b.width, b.back, b.first, b.shift, b.cutoff, b.period) .. entries
  end
  return pack(HEAD, b.base, b.run, b.gone, b.width, b.back) .. entries
end

-- entries returns the bytes of entries from to to of b; none if from is above to.
local function entries(b, from, to)
  return string.sub(b.text, b.from + (from - 1) * b.width, b.from + to * b.width - 1)
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

-- search returns the first i of from to to for which yes(i) is true, or to + 1 if there is none.
-- After the first, yes must be true for every i.
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

-- time returns the stored time of entry i of b, 1 to b.len.
local function time(b, i)
  return b.base + uint48(b.text, b.from + (i - 1) * b.width)
end

-- through returns the running count after the first i entries of b.
local function through(b, i)
  if i == 0 or b.width == NARROW then
    return b.run + b.gone + i
  end
  return b.run + uint48(b.text, b.from + (i - 1) * WIDE + NARROW)
end

local function lowbit(n)
  local bit = 1
  while n % (2 * bit) == 0 do
    bit = 2 * bit
  end
  return bit
end

-- open returns the log of a key, or nil if it has none. Its blocks have the numbers first
-- to last. block(n) is false if an earlier block has n in its range.
local function open(key)
  local len = call('LLEN', key)
  if len == 0 then
    return nil
  end
  local tail = parse(call('LINDEX', key, -1), true)
  local first, last = tail.first, tail.first + len - 1
  local blocks = { [last] = tail }
  local log = { tail = tail, first = first, last = last, blocks = blocks }
  function log.block(n)
    local b = blocks[n]
    if b == nil then
      local text = call('LINDEX', key, n - first)
      b = text ~= '' and parse(text)
      blocks[n] = b
    end
    return b
  end
  log.newest = time(tail, tail.len)
  log.total = through(tail, tail.len)
  return log
end

-- covering returns the number of the block whose range contains n. It is below log.first if that
-- block was forgotten.
local function covering(log, n)
  while n >= log.first and not log.block(n) do
    n = n - lowbit(n)
  end
  return n
end

-- later returns the first number, above log.first, of a block that begins later than t, or
-- log.last + 1 if there is none.
local function later(log, t)
  local function begins(n)
    n = covering(log, n)
    return n >= log.first and log.block(n).base > t
  end
  local before, n = log.first, log.first + 1 -- it is nearly always one of the next
  while n <= log.last and not begins(n) do
    before, n = n, 2 * n - log.first
  end
  return search(before + 1, min(n - 1, log.last), begins)
end

-- after returns the block and the entry of the first event later than t. t is before the
-- newest event. If the block has no such entry, the entry is one past its end.
local function after(log, t)
  local b = log.last
  if log.first < b then
    b = covering(log, later(log, t) - 1)
  end
  if b >= log.first then
    local at = log.block(b)
    local i = search(1, at.len, function(j)
      return time(at, j) > t
    end)
    if i <= at.len or b == log.last then
      return b, i
    end
  end
  b = max(b, log.first) + 1 -- the first of the next block
  while not log.block(b) do
    b = b + lowbit(b)
  end
  return b, 1
end

-- whengone returns the time at which need events will have left. gone is the running count of
-- the events that have already left, and b is the block of the next one. whengone looks for the
-- last block before which fewer than need events leave. It walks up in steps of growing powers
-- of 2, and then halves the step each time. absent is how many events are missing on the way.
local function whengone(log, b, gone, need)
  local function back(n) -- 0 for the last block, which has none
    return n < log.last and (log.block(n) or parse()).back or 0
  end
  local function fewer(n, absent)
    return (through(log.block(n) or parse(), 0) - gone - absent) % RUN < need
  end
  local absent, step = 0, lowbit(b)
  while b + step <= log.last and fewer(b + step, absent + back(b)) do
    b, absent = b + step, absent + back(b)
    step = lowbit(b)
  end
  local part = back(b) -- missing from b to b + step - 1
  while step > 1 do
    step = step / 2
    local n = b + step
    if n <= log.last and log.block(n) then
      local before = part - back(n)
      if fewer(n, absent + before) then
        b, absent, part = n, absent + before, back(n)
      else
        part = before
      end
    end
  end
  local at = log.block(b)
  local whole = through(at, at.len)
  local spare = (whole - gone - absent) % RUN - need -- events of the block that need not leave
  local i = search(1, at.len, function(j)
    return (whole - through(at, j)) % RUN <= spare
  end)
  return i <= at.len and time(at, i) or parse()
end

-- expire makes a log expire when its newest event no longer counts.
local function expire(key, life)
  call('PEXPIRE', key, format('%.0f', ceil(life / 1000)))
end

-- block returns an empty last block for an entry of n events at now. It takes the rest of
-- its head from tail.
local function block(now, run, n, tail)
  return { base = now, run = run % RUN, gone = 0, width = n > 1 and WIDE or NARROW, back = tail.back,
    first = tail.first, shift = tail.shift, cutoff = tail.cutoff, period = tail.period }
end

-- append returns the text of b with these entries and one more, of n events at now. events is
-- how many events the block has before that.
local function append(b, entries, now, events, n)
  local entry = bytes48(now - b.base)
  if b.width == WIDE then
    entry = entry .. bytes48((events + n) % RUN)
  end
  return render(b, entries .. entry)
end

-- start writes a log of one entry, and replaces one that has ended. A server checks its
-- memory at the first write of a script, and only if that write may need more. RPUSH here, and
-- LSET below, therefore come before the writes that forget.
local function start(key, ended, l, now, n)
  local b = block(now, 0, n, { back = 0, first = 1, shift = 0, cutoff = now - l.period, period = l.period })
  local text = append(b, '', now, 0, n)
  call('RPUSH', key, text)
  if ended then
    call('UNLINK', key)
    call('RPUSH', key, text)
  end
  expire(key, l.period)
end

-- add charges n events at now. Entry i of block b is the first that counts. add forgets entries
-- that no longer count: those of one block of several, or some of a single block.
local function add(key, log, l, now, n, b, i)
  local tail, cut, forgotten = log.tail, 0, 0
  now = now - tail.shift
  tail.cutoff = max(now - l.period, tail.cutoff)
  tail.period = l.period
  if log.first == log.last then
    cut = i - 1
  end
  while log.first + forgotten < b and forgotten < BLOCK and (forgotten == 0 or not log.block(log.first + forgotten)) do
    forgotten = forgotten + 1 -- and the rest of its range
  end
  tail.first = log.first + forgotten
  tail.gone = through(tail, cut) - tail.run
  local kept = entries(tail, cut + 1, tail.len)
  if tail.len - cut < BLOCK and now - tail.base < SPAN and (n == 1 or tail.width == WIDE) then
    call('LSET', key, -1, append(tail, kept, now, log.total - tail.run, n))
  else
    local new = block(now, log.total, n, tail)
    tail.first, tail.back = nil, 0
    call('LSET', key, -1, render(tail, kept))
    call('RPUSH', key, append(new, '', now, 0, n))
  end
  if forgotten > 0 then
    call('LPOP', key, forgotten)
  end
  expire(key, l.period)
end

-- plan decides on n events of a key. It returns the reply, and what commit has to write, or nil:
-- n events at now or, without n, a tail with a new shift, because the server's clock has gone
-- back. Such a log keeps its own period, because the call that was denied does not change it.
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
  local gone, missing, from = through(log.block(b), i - 1), 0, b
  while from <= tail.back and from < log.last do -- there are refunds from there on
    missing, from = missing + (log.block(from) or parse()).back, from + lowbit(from)
  end
  local count, reset = (log.total - gone - missing) % RUN, log.newest + tail.shift + l.period - now
  if count + n <= l.rate then
    return true, now, count, reset, { log = log, l = l, now = now, n = n, b = b, i = i, moved = moved }
  end
  if force then
    return false, now, count, reset, { log = log, l = l, now = now, n = n, b = b, i = i }
  end
  local x = now
  if fits then
    x = whengone(log, b, gone, count + n - l.rate) + tail.shift + l.period - now
    if x < 1 or x > l.period then
      parse()
    end
  end
  return false, x, count, reset, moved and { log = log }
end

-- commit writes what plan returned.
local function commit(key, p)
  if not p.log then
    start(key, p.ended, p.l, p.now, p.n)
  elseif p.n then
    add(key, p.log, p.l, p.now, p.n, p.b, p.i)
  else
    call('LSET', key, -1, render(p.log.tail, entries(p.log.tail, 1, p.log.tail.len)))
    expire(key, p.log.tail.period) -- from its newest event on, which is now
  end
end

if op == 'upto' then
  function available(l, _, count)
    return max(0, l.rate - count)
  end
elseif op == 'refund' then
  -- count adds n to what is missing from block b, and records the changed blocks in changed.
  local function count(log, changed, b, n)
    while b >= log.first do
      local at = log.block(b) or parse()
      at.back, changed[b] = at.back + n, true
      b = b - lowbit(b)
    end
  end

  -- shrink drops empty blocks from the end, so that the last one has entries. It returns false
  -- if no block has any.
  local function shrink(log, changed)
    while log.tail.len == 0 do
      local old, b = log.tail, covering(log, log.last - 1)
      if b < log.first then
        return false
      end
      local tail = log.block(b)
      local n = (through(old, 0) - through(tail, tail.len)) % RUN
      if n > 0 then
        count(log, changed, b, -n)
      end
      tail.back, tail.first, tail.shift, tail.cutoff, tail.period = min(old.back, b - 1), old.first, old.shift, old.cutoff, old.period
      changed[log.last], changed[b] = nil, true
      log.tail, log.last = tail, b
    end
    return true
  end

  -- merge joins block b, which has just become empty and so is alone in its range, with
  -- empty neighbors. It returns the number of the joined block.
  local function merge(log, changed, b)
    local function empty(n, span) -- whether there is an empty block of that range
      local at = n >= log.first and n + span <= log.last and log.block(n)
      return at and at.len == 0 and (span == 1 or not log.block(n + span / 2))
    end
    local span = 1
    while empty(b - b % (2 * span), span) and empty(b - b % (2 * span) + span, span) do
      b = b - b % (2 * span)
      log.blocks[b + span], changed[b + span] = false, true
      span = 2 * span
    end
    return b
  end

  -- take removes at most n events of at from block b, the last ones first, and examines
  -- no more than most entries. It returns how many events it removed, how many entries it
  -- examined, and whether the block before may have more.
  local function take(b, at, n, most)
    local to = search(1, b.len, function(i)
      return time(b, i) > at
    end) - 1
    local i, events, part = to, 0, ''
    while i > 0 and events < n and to - i < most and time(b, i) == at do
      local has = (through(b, i) - through(b, i - 1)) % RUN
      if has > n - events then
        has = n - events
        part = string.sub(entries(b, i, i), 1, NARROW) .. bytes48((through(b, i) - b.run - has) % RUN)
      end
      events, i = events + has, i - 1
    end
    if events == 0 then
      return 0, to - i, i == 0
    end
    local kept = { entries(b, 1, i), part }
    if b.width == NARROW then
      kept[3] = entries(b, to + 1, b.len)
    else
      for j = to + 1, b.len do
        kept[#kept + 1] = string.sub(entries(b, j, j), 1, NARROW) .. bytes48((through(b, j) - b.run - events) % RUN)
      end
    end
    b.text, b.from = table.concat(kept), 1
    b.len = #b.text / b.width
    return events, to - i, i == 0
  end

  -- refund takes from the last entry of an instant first, and from no more entries than a block
  -- has.
  function refund(key, l, now, c)
    local log = open(key)
    if not log then
      return
    end
    local at = c.at - log.tail.shift
    local dead = max(max(now - log.tail.shift, log.newest) - l.period, log.tail.cutoff)
    if at <= dead or at > log.newest or log.newest + log.tail.period <= now - log.tail.shift then
      return
    end
    local changed, left, most, more, last = {}, c.n, BLOCK, true, log.last
    local b = covering(log, later(log, at) - 1)
    while more and left > 0 and most > 0 and b >= log.first do
      local block, events, examined = log.block(b)
      events, examined, more = take(block, at, left, most)
      left, most = left - events, most - examined
      if events > 0 then
        changed[b] = true
        if b < log.last then
          count(log, changed, b, events)
          log.tail.back, changed[log.last] = max(log.tail.back, b), true
        end
        if b == log.last and not shrink(log, changed) then
          call('DEL', key)
          return
        elseif block.len == 0 then
          b = merge(log, changed, b)
        end
      end
      b = covering(log, min(b, log.last + 1) - 1)
    end
    for n in pairs(changed) do
      local block = log.block(n)
      call('LSET', key, n - log.first, block and render(block, entries(block, 1, block.len)) or '')
    end
    if log.last < last then
      call('LTRIM', key, 0, log.last - log.first)
    end
  end
end
