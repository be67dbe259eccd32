-- The most frequent case of release.lua, which follows: the lock goes from one exclusive holder to the next. In all other cases
-- release.lua goes on with `holder`.
--
-- `first` is the first entry, which release_short.lua took out. After an exclusive phase the first entry is always the next one:
-- shared ones come first, if there are any.
--
-- Taking an entry out is the first write. A server that is out of memory permits it, and then the other writes of the same call.

-- Bounded by the queue: each round takes an entry out.
while first do
  local channel, number, ttl, kind, token = string.match(first[1], ENTRY)
  if token and kind ~= 'x' then
    redis.call('ZADD', KEYS[3], first[2], first[1])
    break
  end
  -- A member that is no entry was not written by us, and is passed over, too.
  if token and not is_silent(first[1], first[2] - BAND) then
    local fencing = next_token(tonumber(ARGV[2]))
    if not fencing then
      return redis.call('DEL', KEYS[1])
    end
    if tell(channel, number, token, string.format('%.0f', fencing)) then
      redis.call('SET', KEYS[1], token, 'PX', ttl)
      return 1
    end
  end
  first = redis.call('ZPOPMIN', KEYS[3])
  if not first[1] then
    return redis.call('DEL', KEYS[1])
  end
end
