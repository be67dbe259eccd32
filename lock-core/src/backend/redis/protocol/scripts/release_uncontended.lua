-- Releases those of several locks that are held alone and that no request waits for. The others are left to release.lua.
--
-- KEYS[1], …      n locks.
-- KEYS[n + 1], …  their queues.
-- ARGV[1], …      their owner tokens.
--
-- Returns n if all are released. Otherwise a list: for each lock 1 if it is released, or 0.
local count = #ARGV
local held = redis.call('MGET', unpack(KEYS, 1, count))
local all = redis.call('EXISTS', unpack(KEYS, count + 1)) == 0
for i = 1, count do
  all = all and held[i] == ARGV[i]
end
if all then
  return redis.call('DEL', unpack(KEYS, 1, count))
end
local released = {}
for i = 1, count do
  released[i] = 0
  if held[i] == ARGV[i] and redis.call('EXISTS', KEYS[count + i]) == 0 then
    released[i] = redis.call('DEL', KEYS[i])
  end
end
return released
