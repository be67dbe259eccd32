-- Renews a lease that is held beside others. Lets waiters in, if they may enter: the next part of a batch, for example.
--
-- KEYS[1]  the lock.
-- KEYS[2]  the holders.
-- KEYS[3]  if the lock is one of permits: the seats. queue.lua makes the names of the other keys from these.
--
-- ARGV[1]  the owner token.
-- ARGV[2]  the ttl in milliseconds.
-- ARGV[3]  the largest fencing token that the asking process knows.
-- ARGV[4]  its entry without the owner token.
--
-- Returns {1, contended} if the lease lasts for the ttl at least: contended as in acquire.lua. {0} if it is no holder.
--
-- Never shortens: a renewal that was delayed on its way must not cut the lease of a later one.
local holders = KEYS[5]
local holder = redis.pcall('GET', KEYS[1])
-- A key of another type is another's, too. Any other error is returned.
if type(holder) == 'table' and not string.find(holder.err, 'WRONGTYPE', 1, true) then
  return holder
end
if type(holder) ~= 'string' or string.sub(holder, 1, 4) ~= 'lc1+' then
  return {0}
end
local own = ARGV[4] .. ' ' .. ARGV[1]
local now_ms = math.floor(microseconds() / 1000)
local ends = redis.call('ZSCORE', holders, own)
if not ends or tonumber(ends) <= now_ms then
  return {0}
end
-- Takes nothing out. But it is a write that a server permits when it is out of memory, and then it permits the others of the call.
redis.call('ZREM', holders, '')
redis.call('ZADD', holders, 'GT', now_ms + ARGV[2], own)
settle(holder)
-- The lease is renewed, and nothing that comes now may make the reply an error. While the slot moves, the queue and the beats may be
-- at another node. An entry that is taken out before an error comes back with its next check.
if redis.pcall('EXISTS', KEYS[3]) == 1 then
  pcall(advance, tonumber(ARGV[3]), nil, holder)
end
return {1, is_contended(holder)}
