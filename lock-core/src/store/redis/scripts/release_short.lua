-- The short path of release.lua, which follows. The lock is held alone, is not to be kept, and leaves no result. No request waits for it.
if not ARGV[3] and redis.pcall('ZCARD', KEYS[3]) == 0 and redis.pcall('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
