-- Of the version with a list as its queue.
local lock, fence, queue = KEYS[1], KEYS[2], KEYS[3]
local token, ttl, known, count, mode = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local own = ' ' .. ARGV[6] .. ' '

if holder == token then
  leave(queue, own)
elseif not holder and redis.call('EXISTS', queue) == 1 then
  holder = grant_next(lock, queue, fence, known, own)
end

if not holder or holder == token then
  local first, taken = take_tokens(fence, known, count)
  if not first then
    return redis.error_reply(taken)
  end
  if not holder or redis.call('PTTL', lock) < tonumber(ttl) then
    redis.call('SET', lock, token, 'PX', ttl)
  end
  return {1, first, taken}
end

local ours = string.sub(holder, 1, 4) == 'lc1:' and 1 or 0
if mode == 'try' then
  return {0, redis.call('PTTL', lock), 0, ours}
end

local function entry(place, beat)
  return string.format('%.0f %.0f %s %s %s', place, beat, ttl, ARGV[6], token)
end

local function poll()
  return {0, redis.call('PTTL', lock), 0, 0}
end

if mode == 'wait' then
  local length = redis.pcall('LINSERT', queue, 'BEFORE', '', entry(0, 0))
  if type(length) == 'table' then
    return poll()
  end
  if length <= 0 then
    redis.call('RPUSH', queue, entry(0, 0), '')
    redis.call('PEXPIRE', queue, QUEUE_EXPIRY)
  end
  return {0, -2, 0, ours}
end

local now = microseconds()
local place = tonumber(mode)
local found, later
local entries = redis.pcall('LRANGE', queue, 0, -1)
if entries.err then
  return poll()
end
for index, other in ipairs(entries) do
  local stamp, rest = string.match(other, '^(%d+) %d+ (.+)$')
  if stamp then
    local stamped = stamp == '0' and now + index or tonumber(stamp)
    if string.find(other, own, 1, true) then
      found, place = true, stamped
      redis.call('LSET', queue, index - 1, entry(place, now))
    elseif stamp == '0' then
      other = string.format('%.0f %.0f %s', stamped, now, rest)
      redis.call('LSET', queue, index - 1, other)
    end
    if not later and place > 0 and stamped > place then
      later = other
    end
  end
end
if not found then
  place = place > 0 and place or now
  if redis.call('LINSERT', queue, 'BEFORE', later or '', entry(place, now)) <= 0 then
    redis.call('RPUSH', queue, entry(place, now), '')
  end
end
redis.call('PEXPIRE', queue, QUEUE_EXPIRY)
local counter = tonumber(redis.pcall('GET', fence) or '0') or 0
return {0, redis.call('PTTL', lock), place, ours, counter}
