-- Releases a lock that is held alone, if no request waits for it. Else nothing changes, and release.lua is to do it.
--
-- KEYS[1]  the lock.
-- KEYS[2]  the queue.
-- ARGV[1]  the owner token.
--
-- Returns 1 if released, else 0.
if redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('EXISTS', KEYS[2]) == 0 then
  return redis.call('DEL', KEYS[1])
end
return 0
