-- Renews a lease that is handed from task to task inside one process, and takes fencing tokens ahead for the next ones.
--
-- The keys are those of queue.lua.
--
-- ARGV[1]  the owner token
-- ARGV[2]  the ttl in milliseconds
-- ARGV[3]  the largest fencing token that the asking process knows
-- ARGV[4]  how many fencing tokens it would like
--
-- Returns {1, first fencing token, how many, others}: others 1: another process waits, 0: none does. {0} if the key is gone
-- or another's.
local holder = redis.pcall('GET', KEYS[1])
-- A key of another type is another's, too. Any other error is one.
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
-- Never shortens: what was delayed on its way must not cut a later one's lease.
local remaining = redis.call('PTTL', KEYS[1])
if remaining < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
-- Nobody waits in what is no queue.
local waiting = redis.pcall('ZCARD', KEYS[3])
return {1, first, taken, type(waiting) == 'number' and waiting > 0 and 1 or 0}
