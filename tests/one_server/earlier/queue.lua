-- Of the version with a list as its queue.
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
