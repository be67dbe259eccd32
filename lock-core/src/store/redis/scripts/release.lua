-- Releases an exclusive lock, if it still holds the owner token, and grants it to the next waiter. Takes an entry out, too.
--
-- The keys are those of queue.lua.
--
-- ARGV[1]  the owner token.
-- ARGV[2]  the largest fencing token that the asking process knows, the lease's own included.
-- ARGV[3]  for how many milliseconds to keep the key before it expires; 0 or missing: release now.
-- ARGV[4]  if there: the entry that may stand in the queue for this token, without the token.
--
-- `holder` is what the key holds, as release_short.lua has read it.
--
-- Returns 1 if released, 0 if the key is gone or another's.
local lock = KEYS[1]
if ARGV[4] then
  leave(ARGV[4] .. ' ' .. ARGV[1])
end
-- A key of another type is another's, too. Any other error is returned.
if type(holder) == 'table' and not string.find(holder.err, 'WRONGTYPE', 1, true) then
  return holder
end
if holder == ARGV[1] then
  if tonumber(ARGV[3] or 0) > 0 then
    redis.call('PEXPIRE', lock, ARGV[3])
    -- The key no longer holds the owner token, so that a later renewal, or a copy of the acquire, cannot prolong it. A server that
    -- is out of memory leaves the value as it is: a release must succeed there, too.
    redis.pcall('SET', lock, ARGV[1] .. '.', 'KEEPTTL')
  else
    -- An exclusive phase ends.
    redis.pcall('ZREM', KEYS[4], '#')
    if not advance(tonumber(ARGV[2])) then
      redis.call('DEL', lock)
    end
  end
  return 1
end
if not holder then
  advance(tonumber(ARGV[2]))
elseif type(holder) == 'string' and string.sub(holder, 1, 4) == 'lc1+' then
  -- The shared entries behind this one may have waited for it only.
  advance(tonumber(ARGV[2]), nil, settle(holder))
elseif ARGV[4] then
  -- The phase is an exclusive one, also if its holder took the lock without the queue.
  redis.pcall('ZREM', KEYS[4], '#')
end
return 0
