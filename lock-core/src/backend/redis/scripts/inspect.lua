-- Looks at a key.
--
-- KEYS[1]  the lock
--
-- Returns {owner token, remaining milliseconds}; -1: without an expiry. Nothing if nobody holds it.
local holder = redis.call('GET', KEYS[1])
if not holder then
  return {}
end
return {holder, redis.call('PTTL', KEYS[1])}
