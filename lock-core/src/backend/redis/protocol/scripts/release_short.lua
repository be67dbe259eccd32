-- The short paths of release.lua, which follows. The lock is held alone, and no request waits for it. Here it stores a result. A
-- result that is refused is left to the long path.
local call = redis.pcall
if ARGV[5] and call('ZCARD', KEYS[3]) == 0 and call('GET', KEYS[1]) == ARGV[1] and not call('SET', KEYS[7], ARGV[5], 'PX', ARGV[6]).err then
  return call('DEL', KEYS[1])
end
-- Here it stores none, and the lock is not to be kept.
if not ARGV[3] and call('ZCARD', KEYS[3]) == 0 and call('GET', KEYS[1]) == ARGV[1] then
  return call('DEL', KEYS[1])
end
