-- Renews a lease that is handed from task to task inside one process, and takes fencing tokens in advance for the next tasks.
--
-- The keys are those of queue.lua.
--
-- ARGV[1]  the owner token.
-- ARGV[2]  the ttl in milliseconds.
-- ARGV[3]  the largest fencing token that the asking process knows.
-- ARGV[4]  how many fencing tokens it would like.
--
-- Returns {1, first fencing token, how many, contended}: contended 1: another process waits, 0: none does.
-- Returns {0} if the key is gone or another's.
local holder = redis.pcall('GET', KEYS[1])
-- A key of another type is another's, too. Any other error is returned.
if type(holder) == 'table' and not string.find(holder.err, 'WRONGTYPE', 1, true) then
  return holder
end
if holder ~= ARGV[1] then
  return {0}
end
local first, taken = take_tokens(tonumber(ARGV[3]), tonumber(ARGV[4]))
if not first then
  return redis.error_reply(taken)
end
-- Never shortens: a request that was delayed on its way must not cut the lease of a later one.
local remaining = redis.call('PTTL', KEYS[1])
if remaining < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
-- A key of another type is no queue: then nothing waits.
local waiting = redis.pcall('ZCARD', KEYS[3])
return {1, first, taken, type(waiting) == 'number' and waiting > 0 and 1 or 0}
