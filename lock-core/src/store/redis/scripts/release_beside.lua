-- Releases a lock that is held beside others, and lets waiters in. Takes an entry out of the queue, too.
--
-- The keys are those of queue.lua.
--
-- ARGV[1]  the owner token.
-- ARGV[2]  the largest fencing token that the asking process knows.
-- ARGV[3]  for how many milliseconds to keep the holder, and its seat; 0: release now.
-- ARGV[4]  its entry without the owner token.
--
-- Returns 1 if released, 0 if it was no holder.
local holders, seats = KEYS[5], KEYS[6]
local own = ARGV[4] .. ' ' .. ARGV[1]
leave(own)
local holder = redis.pcall('GET', KEYS[1])
-- A key of another type is another's. Any other error is returned.
if type(holder) == 'table' then
  return string.find(holder.err, 'WRONGTYPE', 1, true) and 0 or holder
end
local is_marker = holder and string.sub(holder, 1, 4) == 'lc1+'
local held = 0
if is_marker then
  local now_ms = math.floor(microseconds() / 1000)
  local ends = redis.call('ZSCORE', holders, own)
  if ends then
    held = tonumber(ends) > now_ms and 1 or 0
    redis.call('ZREM', holders, own)
    local seat = string.sub(holder, 5, 5) == 'p' and redis.call('ZSCORE', seats, own)
    if seat then
      redis.call('ZREM', seats, own)
    end
    local keep = tonumber(ARGV[3] or 0)
    if held == 1 and keep > 0 then
      -- The entry no longer has the owner token, so that a later renewal, or a copy of the acquire, cannot prolong it.
      redis.call('ZADD', holders, now_ms + keep, own .. '.')
      if seat then
        redis.call('ZADD', seats, seat, own .. '.')
      end
    end
  end
  holder = settle(holder)
end
if not holder or is_marker then
  advance(tonumber(ARGV[2]), nil, holder)
end
return held
