-- Makes a lock anew at one of several servers that has lost it, while a majority of them has it.
--
-- KEYS[1]  the lock
-- ARGV[1]  the owner token
-- ARGV[2]  the ttl in milliseconds
--
-- Returns 1 if the lock is ours now, 0 if it is another's.
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return 1
end
return redis.call('GET', KEYS[1]) == ARGV[1] and 1 or 0
