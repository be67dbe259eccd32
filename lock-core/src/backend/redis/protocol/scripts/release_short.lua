-- The short paths of release.lua, which follows, for a lock that is held alone and that no request waits for. This one stores a
-- result, and leaves a refusal of it to the long path.
local call = redis.pcall
if ARGV[5] and call('ZCARD', KEYS[3]) == 0 and call('GET', KEYS[1]) == ARGV[1] and not call('SET', KEYS[7], ARGV[5], 'PX', ARGV[6]).err then
  return call('DEL', KEYS[1])
end
-- This one stores no result, and does not keep the lock.
if not ARGV[3] and call('ZCARD', KEYS[3]) == 0 and call('GET', KEYS[1]) == ARGV[1] then
  return call('DEL', KEYS[1])
end
