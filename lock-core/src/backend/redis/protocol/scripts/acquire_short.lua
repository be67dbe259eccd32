-- The short paths of acquire.lua, which follows. They use none of its functions.
--
local kind_word = string.sub(ARGV[6], -1)
-- A request for a body that is to run once, which has no entry in the queue yet.
if kind_word == 'o' and not tonumber(ARGV[5]) then
  -- If the body has run, its result is the reply, whoever holds the lock.
  local result = redis.call('GET', KEYS[7])
  if result then
    return {2, result}
  end
  -- The lock is free, and no request waits. The long path handles an id of the clock that is not a token, or is too small.
  if redis.call('EXISTS', KEYS[1], KEYS[3]) == 0 then
    local id = redis.pcall('XADD', KEYS[2], 'MAXLEN', '0', '*', '', '')
    local millis, sequence = string.match(type(id) == 'string' and id or '', '^(%d+)-(%d+)$')
    local token = millis and tonumber(sequence) < 2048 and millis * 2048 + sequence
    if token and token > tonumber(ARGV[3]) and token < 9007199254740991 then
      redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
      return {1, token, 1}
    end
  end
end
-- An exclusive request that waits for the first time. If the holder is another process like this one, its release will grant the
-- lock to the queue.
if ARGV[5] == 'wait' and (kind_word == 'x' or kind_word == 'o') then
  local holder = redis.call('GET', KEYS[1])
  if holder and holder ~= ARGV[1] and string.sub(holder, 1, 4) == 'lc1:' then
    local time = redis.call('TIME')
    local place = time[1] * 1000000 + time[2]
    -- In the band of the queue for all but shared requests.
    if redis.pcall('ZADD', KEYS[3], 'NX', place + 4500000000000000, ARGV[6] .. ' ' .. ARGV[1]) == 1 then
      redis.call('PEXPIRE', KEYS[3], '30000')
      return {0, redis.call('PTTL', KEYS[1]), place, 1}
    end
  end
end
