-- Renews a lease, if the key still holds the owner token.
--
-- KEYS[1]  the lock.
-- ARGV[1]  the owner token.
-- ARGV[2]  the ttl in milliseconds.
--
-- Returns 1 if the lease lasts for the ttl at least, 0 if the key is gone or another's.
--
-- Never shortens: a renewal that was delayed on its way must not cut the lease of a later one.
local holder = redis.pcall('GET', KEYS[1])
-- A key of another type is another's, too. Any other error is returned.
if type(holder) == 'table' and not string.find(holder.err, 'WRONGTYPE', 1, true) then
  return holder
end
if holder ~= ARGV[1] then
  return 0
end
-- If another client removed the expiry of our key, the key gets one again.
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 1
