-- Takes a lock exclusively if it is free or holds this very owner token. Otherwise takes a place in its queue, or checks on it.
--
-- The keys are those of queue.lua.
--
-- ARGV[1]  the owner token.
-- ARGV[2]  the ttl in milliseconds.
-- ARGV[3]  the largest fencing token that the asking process knows.
-- ARGV[4]  how many fencing tokens it would like.
-- ARGV[5]  'try': do not wait; 'wait': take a place, for the first time; a number: the same, at any later time.
--          The number is the place that the last reply told; 0: none yet.
-- ARGV[6]  its entry without the owner token: the channel of the asking process, a number, the ttl, and x.
--
-- Each word that is sent costs the server as much as a comparison, so there are few.
--
-- Returns {1, first fencing token, how many} if taken.
-- Returns {0, remaining milliseconds, place, ours} if the lock is another's.
-- Remaining -1: without an expiry, -2: not asked for. Place 0: not known yet.
-- Ours 1: the holder is a process like this one, and its release sends a grant, 0: it is not.
-- The replies to 'try' and to a number have three more values: next, a stamp and the label. Without a stamp they have none of them.
-- Next 1: the entry is the first exclusive one of the queue, 0: it is not.
-- The stamp: a grant message that was sent before this reply has a smaller one, and is out of date. 0 if there is no entry.
-- The label is the holder's; empty if it has none.
-- Returns an error LOCKMODE if the lock or its queue is one of permits.
--
-- `holder` is what the key holds, as acquire_short.lua has read it.
--
-- A script is not rolled back, so all that can fail comes before the first write. The clock is moved before the lock is written:
-- that can fail, and does no harm.
local lock, queue, beats = KEYS[1], KEYS[3], KEYS[4]
local token, ttl, known, count, mode = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local own = ARGV[6] .. ' ' .. token
local marker = holder and string.sub(holder, 1, 4) == 'lc1+'

if holder == token then
  -- Granted meanwhile, or by an earlier request of which the reply was lost.
  leave(own)
elseif marker or not holder and redis.call('EXISTS', queue) == 1 then
  -- The waiters come first: no newcomer overtakes the queue.
  holder = advance(known, own, marker and settle(holder, ttl))
  marker = holder and string.sub(holder, 1, 4) == 'lc1+'
end

if not holder or holder == token then
  local first, taken = take_tokens(known, count)
  if not first then
    return redis.error_reply(taken)
  end
  -- A lock that is ours already may have a longer ttl: never shorten it.
  if not holder or redis.call('PTTL', lock) < tonumber(ttl) then
    redis.call('SET', lock, token, 'PX', ttl)
  end
  return {1, first, taken}
end

local ours = (marker or string.sub(holder, 1, 4) == 'lc1:') and 1 or 0
local is_shared = marker and string.sub(holder, 5, 5) == 's'
if marker or ours == 0 then
  -- A key of another type is no queue: then nothing is found.
  local first = redis.pcall('ZRANGEBYSCORE', queue, OTHERS, '+inf', 'LIMIT', '0', '1')[1]
  if marker and not is_shared or first and string.find(first, '^%S+ %d+ %d+ %d+ ') then
    return refuse_mode(known, own, holder)
  end
end

-- Asks the processes of a shared phase to admit no further task to their shares. The message is a hint: each process learns the
-- same from its next renewal. So asking some of them is enough: those with the latest end, which renew last.
local function ask_to_yield(stamp)
  if not stamp then
    return
  end
  local body = string.format('yield %.0f', stamp)
  for _, entry in ipairs(redis.call('ZREVRANGE', KEYS[5], 0, PART)) do
    local channel, number, _, _, holding = string.match(entry, ENTRY)
    if channel then
      tell(channel, number, holding, body)
    end
  end
end

if mode == 'try' then
  if is_shared then
    ask_to_yield(next_token(known))
  end
  return {0, redis.call('PTTL', lock), 0, ours, 1, 0, label_of(holder)}
end

local now = microseconds()
local place = tonumber(mode) or 0
local added
if place == 0 then
  added = redis.pcall('ZADD', queue, 'NX', now + BAND, own)
else
  -- If the clock was set back, a place ahead of it would let all later requests overtake this one.
  place = math.min(place, now)
  added = redis.pcall('ZADD', queue, place + BAND, own)
end
if type(added) == 'table' then
  -- A key of another type under the queue's name is no queue: the waiters poll until it is deleted.
  return {0, redis.call('PTTL', lock), 0, 0}
end
redis.call('PEXPIRE', queue, QUEUE_EXPIRY)
if is_shared then
  -- The first exclusive entry ends the phase for shared ones that come behind it. If it was in the queue already, the cut was lost
  -- with the beats, since all waiters were silent. Then the place of this entry is the cut.
  local cut = added == 1 and now + BAND or redis.call('ZSCORE', queue, own)
  redis.pcall('ZADD', beats, 'NX', cut, '#')
  -- If the clock was set back, a cut ahead of it would let all later shared requests overtake this one.
  redis.pcall('ZADD', beats, 'XX', 'LT', now + BAND, '#')
  redis.pcall('PEXPIRE', beats, '2200')
  if redis.call('ZRANGEBYSCORE', queue, OTHERS, '+inf', 'LIMIT', '0', '1')[1] == own then
    ask_to_yield(next_token(known))
  end
end
if mode == 'wait' then
  return {0, -2, added == 1 and now or 0, ours}
end

note_check(own)
if place == 0 then
  place = tonumber(redis.call('ZSCORE', queue, own)) - BAND
end
local first = redis.call('ZRANGEBYSCORE', queue, OTHERS, '+inf', 'LIMIT', '0', '1')[1]
local is_next = first == own and 1 or 0
local stamp = next_token(known)
if not stamp then
  -- The clock cannot be moved. Then no grant is sent, either.
  return {0, redis.call('PTTL', lock), place, ours}
end
return {0, redis.call('PTTL', lock), place, ours, is_next, stamp, label_of(holder)}
