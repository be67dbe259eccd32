-- Takes a lock from its holders, in any mode, and grants it to the waiters. A key of another type than a string is not a lock:
-- reading it fails, and it is not changed.
--
-- The keys are the first seven of queue.lua. While the slot is being moved, it may be sent with the lock alone. It then deletes the
-- lock, which also removes non-exclusive holders: they count only while their marker exists. Waiters enter by their next checks.
--
-- ARGV[1]  the largest fencing token that the caller knows.
--
-- Returns 1 if it was held, 0 if not.
--
-- Changes any of the keys except the result: it admits every entry that may enter, see phases.lua.
local lock, holders, permits = KEYS[1], KEYS[5], KEYS[6]
local q = {known = tonumber(ARGV[1])}
local holder = redis.call('GET', lock)
if not holders then
  return redis.call('DEL', lock)
end
if is_marker(holder) then
  redis.call('DEL', holders, permits)
elseif holder then
  -- The exclusive phase ends.
  drop_cut()
end
advance(q)
if not q.holder then
  redis.call('DEL', lock)
end
return holder and 1 or 0
