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
-- Nobody waits in what is no list.
local length = redis.pcall('LLEN', KEYS[2])
return {holder, redis.call('PTTL', KEYS[1]), type(length) == 'number' and length > 0 and length - 1 or 0}
