-- The short paths of acquire.lua. That script follows, with all that it needs, and goes on with `holder`.

local holder = redis.call('GET', KEYS[1])

-- If the lock is free and has no queue, the counter plus one is the fencing token, unless the counter was lost.
if not holder and ARGV[4] == '0' and redis.call('EXISTS', KEYS[3]) == 0 then
  local token = redis.pcall('INCR', KEYS[2])
  if type(token) == 'number' and token > tonumber(ARGV[3]) and token < 9007199254740992 then
    redis.call('PSETEX', KEYS[1], ARGV[2], ARGV[1])
    return token
  end
end

-- If the holder is another process like this one, its release will grant the lock to the queue.
if holder and holder ~= ARGV[1] and ARGV[5] == 'wait' and string.sub(holder, 1, 4) == 'lc1:' then
  local time = redis.call('TIME')
  local place = time[1] * 1000000 + time[2]
  -- In the band of the queue that is not for shared requests.
  if redis.pcall('ZADD', KEYS[3], 'NX', place + 4500000000000000, ARGV[6] .. ' ' .. ARGV[1]) == 1 then
    redis.call('PEXPIRE', KEYS[3], '30000')
    return {0, -2, place, 1}
  end
end
