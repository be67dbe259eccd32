-- The script of the version whose queue was a list.

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

local SILENT = 2000000
local QUEUE_EXPIRY = 30000
local CHANNEL = '__lock_core__:grants:'

local function microseconds()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local OUT_OF_BOUNDS = 'ERR no fencing token can be given: '

local function take_tokens(fence, known, count)
  local now = microseconds()
  local counter = tonumber(redis.call('GET', fence) or '0') or 0
  if known > math.max(now, counter) + 3600000000 then
    return nil, string.format(OUT_OF_BOUNDS .. 'this process knows the token %.0f, and the clock and the counter of this server ' ..
      'are more than an hour behind it. If the clock was set back over a loss of data, set it right, or run: SET %s %.0f',
      known, fence, known)
  end
  counter = math.max(counter, known)
  count = math.max(1, math.min(count, now - counter))
  local last = math.max(now, counter + count)
  if not (last > counter and last < 9007199254740992) then
    return nil, string.format(OUT_OF_BOUNDS .. 'the counter %s is at %.0f, which no token can exceed. Set it to the largest token ' ..
      'that was given out', fence, counter)
  end
  redis.call('SET', fence, string.format('%.0f', last))
  return last - count + 1, count
end

local function next_token(fence, known, was_held)
  local token = was_held and redis.pcall('INCR', fence)
  if type(token) == 'number' and token > known and token < 9007199254740992 then
    return token
  end
  return (take_tokens(fence, known, 1))
end

local function pop(queue)
  local entry = redis.pcall('LPOP', queue)
  if type(entry) ~= 'table' then
    return entry
  end
  return not string.find(entry.err, 'WRONGTYPE', 1, true) and redis.call('LPOP', queue)
end

local function grant_next(lock, queue, fence, known, own, first, was_held)
  local now
  while true do
    local entry = first or pop(queue)
    first = nil
    if not entry or entry == '' then
      return nil
    end
    local beat, ttl, channel, number, token = string.match(entry, '^%d+ (%d+) (%d+) (%S+) (%d+) (.+)$')
    if token and ' ' .. channel .. ' ' .. number .. ' ' == own then
      return nil
    end
    local silent = not token
    if token and beat ~= '0' then
      now = now or microseconds()
      silent = tonumber(beat) + SILENT < now
    end
    if not silent then
      local fencing = next_token(fence, known, was_held)
      if not fencing then
        return nil
      end
      fencing = string.format('%.0f', fencing)
      local message = number .. ' ' .. fencing .. ' ' .. redis.sha1hex(token .. ' ' .. fencing)
      local publish = string.sub(channel, 1, 1) == '{' and 'SPUBLISH' or 'PUBLISH'
      local reached = redis.pcall(publish, CHANNEL .. channel, message)
      if type(reached) == 'number' and reached > 0 then
        redis.call('SET', lock, token, 'PX', ttl)
        return token
      end
    end
  end
end

local function leave(queue, own)
  for _, entry in ipairs(redis.pcall('LRANGE', queue, 0, -1)) do
    if string.find(entry, own, 1, true) then
      redis.call('LREM', queue, 1, entry)
      return
    end
  end
end
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
