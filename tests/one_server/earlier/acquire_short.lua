-- Of the version with a list as its queue.

if ARGV[4] == '0' and redis.call('EXISTS', KEYS[1], KEYS[3]) == 0 then
  local token = redis.pcall('INCR', KEYS[2])
  if type(token) == 'number' and token > tonumber(ARGV[3]) and token < 9007199254740992 then
    redis.call('PSETEX', KEYS[1], ARGV[2], ARGV[1])
    return token
  end
end

local holder = redis.call('GET', KEYS[1])

if holder and holder ~= ARGV[1] and ARGV[5] == 'wait' and string.sub(holder, 1, 4) == 'lc1:' then
  local entry = '0 0 ' .. ARGV[2] .. ' ' .. ARGV[6] .. ' ' .. ARGV[1]
  local length = redis.pcall('LINSERT', KEYS[3], 'BEFORE', '', entry)
  if type(length) == 'number' and length > 0 then
    return {0, -2, 0, 1}
  end
end
