-- Writes what the plain case has made: the value of a key, or the last block of a log.
if not log then
  failed = try('SET', key, text, 'PX', life).err
else
  local reply
  if log == 'first' then
    reply = try('RPUSH', key, text)
  else
    reply = try('LSET', key, -1, text)
  end
  failed = type(reply) == 'table' and reply.err
  if not failed then
    call('PEXPIRE', key, life)
  end
end
