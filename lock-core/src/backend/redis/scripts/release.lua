-- Lets go of a key, if it still holds the owner token.
--
-- KEYS[1]  the lock
-- ARGV[1]  the owner token
-- ARGV[2]  for how many milliseconds to keep the key before it expires; 0: delete it now
--
-- Returns 1 if released, 0 if the key is gone or another's.
local holder = redis.pcall('GET', KEYS[1])
-- A key of another type is another's, too. Any other error is one.
if type(holder) == 'table' and not string.find(holder.err, 'WRONGTYPE', 1, true) then
  return holder
end
if holder ~= ARGV[1] then
  return 0
end
if tonumber(ARGV[2]) > 0 then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
else
  redis.call('DEL', KEYS[1])
end
return 1
