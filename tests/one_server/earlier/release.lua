-- Of the version with a list as its queue.
local lock, fence, queue = KEYS[1], KEYS[2], KEYS[3]
if ARGV[4] then
  leave(queue, ' ' .. ARGV[4] .. ' ')
end
if type(holder) == 'table' and not string.find(holder.err, 'WRONGTYPE', 1, true) then
  return holder
end
if holder == ARGV[1] then
  if tonumber(ARGV[3] or 0) > 0 then
    redis.call('PEXPIRE', lock, ARGV[3])
    redis.pcall('SET', lock, ARGV[1] .. '.', 'KEEPTTL')
  elseif not grant_next(lock, queue, fence, tonumber(ARGV[2]), nil, first, not ARGV[3]) then
    redis.call('DEL', lock)
  end
  return 1
end
if not holder then
  grant_next(lock, queue, fence, tonumber(ARGV[2]))
end
return 0
