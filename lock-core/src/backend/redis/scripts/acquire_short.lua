-- The short ways of acquire.lua, which stands behind it with all that it needs, and goes on with `holder`.
local holder = redis.call('GET', KEYS[1])

-- The lock is free, nobody waits for it, and the server's time is ahead of the counter and of what the process knows.
-- Times of 16 digits compare as texts.
if not holder and ARGV[4] == '1' and redis.call('EXISTS', KEYS[3]) == 0 then
  local time = redis.call('TIME')
  local now = time[1] .. string.sub('00000' .. time[2], -6)
  local counter, known = redis.call('GET', KEYS[2]), ARGV[3]
  if #now == 16 and counter and #counter == 16 and counter < now and (#known < 16 or #known == 16 and known < now) then
    redis.call('SET', KEYS[2], now)
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
    return {1, tonumber(now), 1}
  end
end

-- Another process like this holds it, and there is a queue.
if holder and holder ~= ARGV[1] and ARGV[5] == 'wait' and string.sub(holder, 1, 4) == 'lc1:' then
  local entry = '0 0 ' .. ARGV[2] .. ' ' .. ARGV[6] .. ' ' .. ARGV[7] .. ' ' .. ARGV[1]
  if redis.call('LINSERT', KEYS[3], 'BEFORE', '', entry) > 0 then
    return {0, -2, 0, 1}
  end
end
