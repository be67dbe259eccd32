-- Looks at a lock and its queue.
--
-- KEYS[1]  the lock
-- KEYS[2]  the queue
--
-- Returns {owner token, remaining milliseconds, waiting processes}; remaining -1: without an expiry. Nothing if nobody
-- holds it.
local holder = redis.call('GET', KEYS[1])
if not holder then
  return {}
end
-- Nobody waits in what is no queue.
local waiting = redis.pcall('ZCARD', KEYS[2])
return {holder, redis.call('PTTL', KEYS[1]), type(waiting) == 'number' and waiting or 0}
