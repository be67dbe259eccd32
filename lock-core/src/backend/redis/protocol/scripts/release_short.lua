-- The short paths of release.lua, which follows. The lock is held alone, and no request waits for it. Here it leaves a result. A result
-- that is refused is left to the long path.
if ARGV[5] and redis.pcall('ZCARD', KEYS[3]) == 0 and redis.pcall('GET', KEYS[1]) == ARGV[1]
    and not redis.pcall('SET', KEYS[7], ARGV[5], 'PX', ARGV[6]).err then
  return redis.call('DEL', KEYS[1])
end
-- Here it leaves none, and is not to be kept.
if not ARGV[3] and redis.pcall('ZCARD', KEYS[3]) == 0 and redis.pcall('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
