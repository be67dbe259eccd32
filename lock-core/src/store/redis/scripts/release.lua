-- Lets go of an exclusive lock, if it still holds the owner token, and gives it to the next waiter. Takes an entry out, too.
--
-- The keys are those of queue.lua.
--
-- ARGV[1]  the owner token
-- ARGV[2]  the largest fencing token that the asking process knows, the lease's own included
-- ARGV[3]  for how many milliseconds to keep the key before it expires; 0: let go now. Not there at the first try of a plain
--          release where a fencing token may be counted up: then it is let go now, and the next holder's token is
-- ARGV[4]  if there: the entry that may stand in the queue for this token, but for the token
--
-- `holder` is what the key holds, as release_short.lua has read it.
--
-- Returns 1 if let go, 0 if the key is gone or another's.
local lock = KEYS[1]
if ARGV[4] then
  leave(ARGV[4] .. ' ' .. ARGV[1])
end
-- A key of another type is another's, too. Any other error is one.
if type(holder) == 'table' and not string.find(holder.err, 'WRONGTYPE', 1, true) then
  return holder
end
if holder == ARGV[1] then
  if tonumber(ARGV[3] or 0) > 0 then
    redis.call('PEXPIRE', lock, ARGV[3])
    -- It is nobody's any more: a renewal, or a copy of the acquire, that comes behind must not prolong it. Without memory it
    -- stays as it is, since letting go must work then, too.
    redis.pcall('SET', lock, ARGV[1] .. '.', 'KEEPTTL')
  else
    -- An exclusive phase ends.
    redis.pcall('ZREM', KEYS[4], '#')
    if not advance(tonumber(ARGV[2]), nil, nil, not ARGV[3]) then
      redis.call('DEL', lock)
    end
  end
  return 1
end
if not holder then
  advance(tonumber(ARGV[2]))
elseif type(holder) == 'string' and string.sub(holder, 1, 4) == 'lc1+' then
  -- The entry may have been what the shared ones behind it had to wait for.
  advance(tonumber(ARGV[2]), nil, settle(holder))
elseif ARGV[4] then
  -- The phase is an exclusive one, also if its holder came past the queue.
  redis.pcall('ZREM', KEYS[4], '#')
end
return 0
