-- Takes a lock if it is free or holds this very owner token; else takes a place in its queue, or checks on that place.
--
-- KEYS[1]  the lock: a string that holds the owner token, with an expiry
-- KEYS[2]  the fencing counter: the largest fencing token given out, without an expiry
-- KEYS[3]  the queue
-- ARGV[1]  the owner token
-- ARGV[2]  the ttl in milliseconds
-- ARGV[3]  the largest fencing token that the asking process knows
-- ARGV[4]  how many fencing tokens it would like; 0: one, which may be counted up without looking at the time
-- ARGV[5]  'try': do not wait; 'wait': take a place, for the first time; a number: the same, at any later time, and the
--          place that it was told; 0: none yet
-- ARGV[6]  the name of its entry: the channel of the asking process and a number
--
-- A word costs the server as much as a comparison, so there are few.
--
-- Returns {1, first fencing token, how many} if taken, or the fencing token alone if it was counted up;
-- {0, remaining milliseconds, place, ours} if another's: remaining -1: without an expiry, -2: not asked for; place 0: not
-- known yet; ours 1: the holder is a process like this, so that a grant is to be expected, 0: it is not. After a check on the
-- place, a fifth word: the fencing counter. A message of a grant that was sent before has a token up to it, and is over.
--
-- `holder` is what the key holds, as acquire_short.lua has read it.
--
-- A script is not rolled back, so all that can fail comes before the first write, and the counter is written before the
-- lock: a lock without a larger counter would be a lock without a fencing token.
local lock, fence, queue = KEYS[1], KEYS[2], KEYS[3]
local token, ttl, known, count, mode = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local own = ' ' .. ARGV[6] .. ' '

if holder == token then
  -- Granted meanwhile, or by a request whose answer was lost.
  leave(queue, own)
elseif not holder and redis.call('EXISTS', queue) == 1 then
  -- Whoever waits comes first: nobody barges in.
  holder = grant_next(lock, queue, fence, known, own)
end

if not holder or holder == token then
  local first, taken = take_tokens(fence, known, count)
  if not first then
    return redis.error_reply(taken)
  end
  -- A lock that is ours already may have a longer ttl: never shorten it.
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

-- A key of another type under the queue's name is no queue: its waiters ask again and again, until somebody deletes it.
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

-- Checks on the queue: stamps the entries that nobody has stamped yet, so that the silent ones among them are found out,
-- and moves on the own one, or puts it back before the first one that came later.
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
    -- Different places for those that are stamped together.
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
