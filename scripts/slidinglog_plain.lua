-- Sliding log, the plain case: see plain.lua. It is a take of one event on a key that is new, or
-- whose log has only blocks of single events, no refunds, and the first event that counts in its
-- first block.
local far, run48 = 231 * 365 * 24 * 3600 * 1000000, 2 ^ 48
local blocks = n == 1 and reserved < rate and try('LLEN', key)
plain = blocks == 0
if plain then
  ok, x, y, z, log = true, now, 0, 0, 'first'
  text = pack('>dddddddddI6', now, 0, 0, 6, 0, 1, 0, now - period, period, 0)
elseif type(blocks) == 'number' then
  local tail = call('LINDEX', key, -1)
  local len = (#tail - 72) / 6
  if len >= 1 and len <= 64 then
    local base, run, gone, width, back, first, shift, cutoff, p = unpack('>ddddddddd', tail)
    local newest, dead = base + unpack('>I6', tail, 67 + 6 * len), max(now - period, cutoff)
    local usual = width == 6 and back == 0 and shift == 0 and p == period and newest <= now and newest > dead
      and base > -far and base < far and run >= 0 and run < run48 and gone >= 0 and gone < run48
      and first >= 1 and first < run48 and cutoff > -2 * far and cutoff < far
      and base % 1 + run % 1 + gone % 1 + len % 1 + first % 1 + cutoff % 1 == 0
    local head, from, start, before, entries = tail, 73, base, run + gone, len -- of the first block
    if usual and blocks > 1 then
      head, from = call('LINDEX', key, 0), 41
      entries = (#head - 40) / 6
      usual = entries >= 1 and entries <= 64
      if usual then
        local r, g, w, b
        start, r, g, w, b = unpack('>ddddd', head)
        before = r + g
        usual = w == 6 and b == 0 and start > -far and start < far and r >= 0 and r < run48 and g >= 0 and g < run48
          and start % 1 + r % 1 + g % 1 + entries % 1 == 0
      end
    end
    if usual then
      local i, to = 1, entries + 1 -- the first that counts
      while i < to do
        local middle = floor((i + to) / 2)
        if start + unpack('>I6', head, from + 6 * (middle - 1)) > dead then
          to = middle
        else
          i = middle + 1
        end
      end
      y, z = (run + gone + len - before - i + 1) % run48, newest + period - now
      if i > entries then -- the first that counts is in a later block
      elseif y + reserved >= rate then
        local leaves = i + y + reserved - rate -- when this entry has left, there is room
        x = leaves <= entries and start + unpack('>I6', head, from + 6 * (leaves - 1)) + period - now
        plain = x and x <= period
      else
        local cut = blocks == 1 and i - 1 or 0
        plain = len - cut < 64 and now - base < run48
        if plain then
          ok, x, log = true, now, 'last'
          text = pack('>ddddddddd', base, run, gone + cut, 6, 0, first, 0, dead, period)
            .. string.sub(tail, 73 + 6 * cut) .. pack('>I6', now - base)
        end
      end
    end
  end
end
life = ok and format('%.0f', ceil(period / 1000))
