-- Takes a lock in any mode, if the request may enter now or has entered already. Otherwise takes a place in the queue, or checks on
-- that place.
--
-- The keys are those of queue.lua. An exclusive request may be sent with the first four, see there. Then the lock has a holder: the request
-- takes its place or checks on it, and lets nothing in.
--
-- ARGV[1]  the owner token.
-- ARGV[2]  the ttl in milliseconds.
-- ARGV[3]  the largest fencing token that the asking process knows.
-- ARGV[4]  how many fencing tokens it would like. Only an exclusive holder gets more than one.
-- ARGV[5]  'try': do not wait; 'wait': take a place, for the first time; a number: the same, at any later time.
--          The number is the place in the last reply; 0: none yet.
-- ARGV[6]  its entry without the owner token: the channel of the asking process, a number, the ttl, and the kind.
-- ARGV[7]  if there: the process waits, but polls, since grants cannot reach it. For so many milliseconds a mark says so.
--
-- Each word that is sent costs the server as much as a comparison, so there are few.
--
-- Returns {1, first fencing token, how many} if taken alone.
-- Returns {2, result} if a body is to run once, and has run: KEYS[7] holds its result.
-- Returns {1, fencing token, contended, permit, more} if taken beside others.
-- Contended 1: an exclusive entry is queued, or, for permits, any entry. The permit is 0 if shared.
-- More 1: the next part of a batch waits for any call of release.lua, renew.lua, or this one.
-- Returns {0, remaining milliseconds, place, ours} if busy.
-- Remaining -1: without an expiry. Of permits: until the first of the leases ends. Place 0: not known yet.
-- Ours 1: the holder is a process like this one, and its release sends a grant, 0: it is not.
-- The replies to 'try' and to a number have three more values: next, a stamp and the label. Without a stamp they have none of them.
-- Next 1: the entry is the first of its band of the queue, 0: it is not.
-- The stamp: a grant message that was sent before this reply has a smaller one, and is out of date. 0 if there is no entry.
-- The label is the holder's; empty if it has none.
-- Returns an error LOCKMODE if the lock or its queue is in another mode: permits and the other two modes exclude each other.
--
-- A script is not rolled back, so what can fail comes before the lock is written. The clock is moved before: that can fail, and does
-- no harm.
local lock, queue, beats, holders, permits = KEYS[1], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local token, ttl, known, mode = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[5]
local own, kind = ARGV[6] .. ' ' .. token, string.match(ARGV[6], ' (%w+)$')
local n = tonumber(kind)
-- Kind 'o' is to run a body once, and is exclusive like 'x'.
local alone = kind == 'x' or kind == 'o'
local place = tonumber(mode) or 0
local band, band_start = BAND, OTHERS
if kind == 's' then
  band, band_start = 0, '0'
end
local holder = redis.call('GET', lock)
-- `result` is set by acquire_short.lua.
if result then
  -- Granted nevertheless, by a script that did not find the result while the slot was being moved.
  if holder == token then
    redis.call('DEL', lock)
    holder = nil
  end
  leave(own)
  -- The entries behind it may enter then, or have the same result.
  if not holder then
    advance(known)
  end
  return {2, result}
end
local is_marker = holder and string.sub(holder, 1, 4) == 'lc1+'

local ends = is_marker and not alone and redis.call('ZSCORE', holders, own)
if ends then
  local now_ms = math.floor(microseconds() / 1000)
  local permit = n and redis.call('ZSCORE', permits, own) or not n and 0
  if not permit then
    -- The permits were evicted: no server knows any more which one this is. It enters anew, when there is room.
    redis.call('ZREM', holders, own)
    holder = settle(holder)
    is_marker = holder
  elseif tonumber(ends) > now_ms then
    -- Granted meanwhile, or by an earlier request of which the reply was lost. The lease may be longer: never shorten it.
    local fencing, refused = string.match(holder, '(%d+):$'), nil
    if n then
      fencing, refused = next_token(known)
      if not fencing then
        return redis.error_reply(refused)
      end
    end
    leave(own)
    redis.call('ZADD', holders, 'GT', now_ms + ttl, own)
    settle(holder)
    return {1, tonumber(fencing), is_contended(holder), tonumber(permit), 0}
  end
end

if holder == token then
  -- An exclusive request was granted meanwhile, or by an earlier request of which the reply was lost.
  leave(own)
end
if mode ~= 'try' and (kind == 's' and not holder or not n and is_marker) then
  -- If the clock was set back, a cut ahead of it would let later shared requests overtake the exclusive one that waits.
  redis.pcall('ZADD', beats, 'XX', 'LT', microseconds() + BAND, '#')
end
-- The waiters come first: no newcomer overtakes the queue, and no request of which the entry was taken out as silent. A holder that
-- crashed may have left the lock to them.
if holders and (is_marker or not holder and (not alone or redis.call('EXISTS', queue) == 1)) then
  if is_marker and (kind ~= 's' or redis.call('EXISTS', queue) == 1) then
    holder = settle(holder, ttl)
  end
  local mine, refused
  holder, mine, refused = advance(known, own, holder, not alone and kind, ttl)
  if mine then
    return {1, unpack(mine)}
  end
  if refused then
    return redis.error_reply(refused)
  end
end

if alone and (holder == token or not holder and holders) then
  local first, taken = take_tokens(known, tonumber(ARGV[4]))
  if not first then
    return redis.error_reply(taken)
  end
  -- A lock that is ours already may have a longer ttl: never shorten it.
  if not holder or redis.call('PTTL', lock) < ttl then
    redis.call('SET', lock, token, 'PX', ARGV[2])
  end
  if ARGV[7] and KEYS[8] then
    -- Its own mark must not end its own batch. Another process that polls soon sets the mark again.
    redis.pcall('DEL', KEYS[8])
  end
  return {1, first, taken}
end

is_marker = holder and string.sub(holder, 1, 4) == 'lc1+'
local is_shared = is_marker and string.sub(holder, 5, 5) == 's'
local ours = (is_marker or holder and string.sub(holder, 1, 4) == 'lc1:') and 1 or 0
local is_permits = is_marker and not is_shared
local is_refused = is_permits and not n or n and not is_permits and holder and string.find(holder, '^lc[01][:+]')
if not is_refused and (is_marker or ours == 0) then
  -- The queue may be in another mode, too. A key of another type is no queue: then nothing is found.
  local first = redis.pcall('ZRANGEBYSCORE', queue, n and '0' or OTHERS, '+inf', 'LIMIT', '0', '1')[1]
  local _, _, _, first_kind = string.match(first or '', ENTRY)
  is_refused = first_kind and (tonumber(first_kind) == nil) == (n ~= nil)
end
if is_refused then
  leave(own)
  -- The entries behind it may enter then.
  if holders then
    advance(known, nil, holder)
  end
  return redis.error_reply('LOCKMODE this key is held or waited for in another mode')
end

local added
if mode ~= 'try' then
  if place == 0 then
    added = redis.pcall('ZADD', queue, 'NX', microseconds() + band, own)
  else
    -- If the clock was set back, a place ahead of it would let all later requests overtake this one.
    place = math.min(place, microseconds())
    added = redis.pcall('ZADD', queue, place + band, own)
  end
  if type(added) == 'table' then
    -- A key of another type under the queue's name is no queue: the waiters poll until it is deleted.
    return {0, redis.call('PTTL', lock), 0, 0}
  end
  redis.call('PEXPIRE', queue, QUEUE_EXPIRY)
end
if kind == 's' and holder and not is_marker then
  -- The phase is an exclusive one, also if its holder took the lock without the queue.
  redis.pcall('ZREM', beats, '#')
elseif alone and is_shared then
  local is_first = mode == 'try'
  if not is_first then
    -- The first exclusive entry ends the phase for shared ones that come behind it. If it was in the queue already, the cut was lost
    -- with the beats, since all waiters were silent. Then the place of this entry is the cut, unless the clock was set back.
    local latest = microseconds() + BAND
    local cut = added == 1 and latest or math.min(redis.call('ZSCORE', queue, own), latest)
    redis.pcall('ZADD', beats, 'NX', cut, '#')
    redis.pcall('PEXPIRE', beats, '2200')
    is_first = redis.call('ZRANGEBYSCORE', queue, OTHERS, '+inf', 'LIMIT', '0', '1')[1] == own
  end
  -- Asks the processes of a shared phase to admit no further task to their shares. The message is a hint: each process learns the
  -- same from its next renewal. So asking some of them is enough: those with the latest end, which renew last.
  local stamp = is_first and holders and next_token(known)
  local body = stamp and string.format('yield %.0f', stamp)
  for _, entry in ipairs(body and redis.call('ZREVRANGE', holders, 0, PART) or {}) do
    local channel, number, _, _, holding = string.match(entry, ENTRY)
    if channel then
      notify(channel, number, holding, body)
    end
  end
end
local remaining, labelled = redis.call('PTTL', lock), holder or ''
if is_marker and holders then
  local soonest = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')
  if is_permits and soonest[2] and soonest[1] ~= '#' then
    remaining = math.max(0, tonumber(soonest[2]) - math.floor(microseconds() / 1000))
  end
  local longest = redis.call('ZREVRANGE', holders, 0, 1)
  labelled = string.match(longest[longest[1] == '#' and 2 or 1] or '', '^%S+ %d+ %d+ %w+ (.+)$') or ''
end
if mode == 'wait' then
  return {0, remaining, added == 1 and microseconds() or 0, ours}
end
local next, stamp = 1, 0
if ARGV[7] and KEYS[8] then
  redis.pcall('SET', KEYS[8], string.match(ARGV[6], '^%S+'), 'PX', ARGV[7])
end
if mode ~= 'try' then
  -- The check shows that the process is alive. Entries that were not checked for too long are taken out of the beats, which would
  -- outgrow the queue otherwise.
  local now = microseconds()
  if type(redis.pcall('ZADD', beats, now, own)) == 'number' then
    redis.call('ZREMRANGEBYSCORE', beats, '-inf', now - SILENT)
    redis.call('PEXPIRE', beats, '2200')
  end
  if place == 0 then
    place = tonumber(redis.call('ZSCORE', queue, own)) - band
  end
  next = redis.call('ZRANGEBYSCORE', queue, band_start, '+inf', 'LIMIT', '0', '1')[1] == own and 1 or 0
  stamp = next_token(known)
  if not stamp then
    -- The clock cannot be moved. Then no grant is sent, either.
    return {0, remaining, place, ours}
  end
end
return {0, remaining, place, ours, next, stamp, string.match(labelled, '^lc[01]:(.*):') or ''}
