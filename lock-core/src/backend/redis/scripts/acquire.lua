-- Takes a key, with a fencing token, if it is free or holds this very owner token.
--
-- KEYS[1]  the lock: a string that holds the owner token, with an expiry
-- KEYS[2]  the fencing counter: the largest fencing token given out, without an expiry
-- ARGV[1]  the owner token
-- ARGV[2]  the ttl in milliseconds
-- ARGV[3]  the largest fencing token that the asking process knows
--
-- Returns {1, fencing token} if taken, {0, remaining milliseconds} if another's; -1: without an expiry.
--
-- A script is not rolled back, so all that can fail comes before the first write, and the counter is written before the
-- lock: a lock without a larger counter would be a lock without a fencing token. Numbers are doubles here, exact up to
-- 2^53, but are printed with 14 digits unless told otherwise.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  return {0, redis.call('PTTL', KEYS[1])}
end

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local counter = tonumber(redis.call('GET', KEYS[2]) or '0') or 0
local known = tonumber(ARGV[3])

-- A process whose knowledge lies an hour ahead of both is mad, and must not drag everybody into the future.
if known > math.max(now, counter) + 3600000000 then
  return redis.error_reply('ERR the fencing token known to this process is more than an hour ahead of the server')
end

local token = math.max(now, counter + 1, known + 1)
redis.call('SET', KEYS[2], string.format('%.0f', token))
-- After a lost answer the key may be ours already, by a request with a longer ttl: never shorten it.
if not holder or redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
return {1, token}
