-- Takes a lock from its holders, in any mode, and grants it to the waiters. A key of another type than a string is no lock:
-- reading it fails, and it stays.
--
-- The keys are those of queue.lua.
--
-- ARGV[1]  the largest fencing token that the asking process knows.
--
-- Returns 1 if it was held, 0 if not.
local holder = redis.call('GET', KEYS[1])
if holder and string.sub(holder, 1, 4) == 'lc1+' then
  redis.call('DEL', KEYS[5], KEYS[6])
elseif holder then
  -- An exclusive phase ends.
  redis.pcall('ZREM', KEYS[4], '#')
end
-- The key is deleted last: while its slot is being moved, a node refuses to create a missing key.
if not advance(tonumber(ARGV[1])) then
  redis.call('DEL', KEYS[1])
end
return holder and 1 or 0
