-- The short ways of acquire.lua, which stands behind it with all that it needs, and goes on with `holder`.

local holder = redis.call('GET', KEYS[1])

-- The lock is free, nobody waits for it, and one more than the counter is a token that is larger than all others.
if not holder and ARGV[4] == '0' and redis.call('EXISTS', KEYS[3]) == 0 then
  local token = redis.pcall('INCR', KEYS[2])
  if type(token) == 'number' and token > tonumber(ARGV[3]) and token < 9007199254740992 then
    redis.call('PSETEX', KEYS[1], ARGV[2], ARGV[1])
    return token
  end
end

-- Another process like this holds it: its release will grant the lock to the queue.
if holder and holder ~= ARGV[1] and ARGV[5] == 'wait' and string.sub(holder, 1, 4) == 'lc1:' then
  local time = redis.call('TIME')
  local place = time[1] * 1000000 + time[2]
  -- In the band of the queue that is not for shared requests.
  if redis.pcall('ZADD', KEYS[3], 'NX', place + 4500000000000000, ARGV[6] .. ' ' .. ARGV[1]) == 1 then
    redis.call('PEXPIRE', KEYS[3], '30000')
    return {0, -2, place, 1}
  end
end
