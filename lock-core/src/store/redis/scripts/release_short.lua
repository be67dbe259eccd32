-- The short path of release.lua, which follows: an exclusive lock that is not to be kept, and that no request waits for.
if not ARGV[3] and redis.pcall('ZCARD', KEYS[3]) == 0 and redis.pcall('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
