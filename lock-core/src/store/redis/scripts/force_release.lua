-- Takes a lock from whoever holds it, and gives it to the next waiter. A key of another type than a string is no lock:
-- reading it fails, and it stays.
--
-- The keys are those of queue.lua.
--
-- ARGV[1]  the largest fencing token that the asking process knows
--
-- Returns 1 if somebody held it, 0 if not.
local holder = redis.call('GET', KEYS[1])
-- The key is deleted last: while its slot is being moved, a node refuses to make one that is gone.
if not grant_next(tonumber(ARGV[1])) then
  redis.call('DEL', KEYS[1])
end
return holder and 1 or 0
