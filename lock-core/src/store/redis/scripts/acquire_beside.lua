-- Takes a lock beside others, shared or as one of its permits, if it may enter now or has entered already. Otherwise takes a place
-- in the queue, or checks on that place.
--
-- The keys are those of queue.lua.
--
-- ARGV[1]  the owner token.
-- ARGV[2]  the ttl in milliseconds.
-- ARGV[3]  the largest fencing token that the asking process knows.
-- ARGV[4]  not used.
-- ARGV[5]  'try': do not wait; 'wait': take a place, for the first time; a number: the same, at any later time.
--          The number is the place that the last reply told; 0: none yet.
-- ARGV[6]  its entry without the owner token: the channel of the asking process, a number, the ttl, and s or the number of permits.
--
-- Returns {1, fencing token, contended, seat, more} if taken.
-- Contended 1: an exclusive entry is queued, or, for permits, any entry. The seat is 0 if shared.
-- More 1: the next part of a batch waits for any call of release_beside.lua, renew_beside.lua or this one.
-- Returns {0, remaining milliseconds, place, ours} if busy. The replies to 'try' and to a number have three more values: next,
-- a stamp and the label. All values are as in acquire.lua, with these differences.
-- Remaining: of permits, until the first of the leases ends. Next 1: no entry of its own kind is before it.
-- Returns an error LOCKMODE if the lock or its queue is in another mode: permits and the other two modes exclude each other.
local lock, queue, beats, holders, seats = KEYS[1], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local token, ttl, known, mode = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[5]
local own = ARGV[6] .. ' ' .. token
local kind = string.match(ARGV[6], '%w+$')
local n = tonumber(kind)
local mark = n and 'lc1+p' or 'lc1+s'
local place = tonumber(mode) or 0
local band = n and BAND or 0

local holder = redis.call('GET', lock)
local now = microseconds()
local now_ms = math.floor(now / 1000)
local is_marker = holder and string.sub(holder, 1, 4) == 'lc1+'

if is_marker and string.sub(holder, 1, 5) == mark then
  local ends = redis.call('ZSCORE', holders, own)
  local seat = n and redis.call('ZSCORE', seats, own) or not n and 0
  if ends and not seat then
    -- The seats were evicted: no server knows any more which one this is. It enters anew, when there is room.
    redis.call('ZREM', holders, own)
    holder = settle(holder)
    is_marker = holder
  elseif ends and tonumber(ends) > now_ms then
    -- Granted meanwhile, or by an earlier request of which the reply was lost. The lease may be longer: never shorten it.
    local fencing = string.match(holder, '(%d+):$')
    if n then
      local refused
      fencing, refused = next_token(known)
      if not fencing then
        return redis.error_reply(refused)
      end
      seat = tonumber(seat)
    end
    leave(own)
    redis.call('ZADD', holders, 'GT', now_ms + ttl, own)
    settle(holder)
    return {1, tonumber(fencing), is_contended(holder), seat, 0}
  end
end

if not n and mode ~= 'try' then
  -- If the clock was set back, a cut ahead of it would let this request overtake the exclusive one that waits.
  redis.pcall('ZADD', beats, 'XX', 'LT', now + BAND, '#')
end
-- A request that has a place takes it before the others are served: its entry may have been taken out as silent.
-- A newcomer is served after the others: a holder that crashed may have left the lock to waiters.
local added
if place > 0 then
  -- If the clock was set back, a place ahead of it would let all later requests overtake this one.
  place = math.min(place, now)
  added = redis.pcall('ZADD', queue, place + band, own)
end
if is_marker and (n or redis.call('EXISTS', queue) == 1) then
  holder = settle(holder, ttl)
end
local mine, refused
holder, mine, refused = advance(known, own, holder, kind, ttl)
if mine then
  return {1, unpack(mine)}
end
if refused then
  return redis.error_reply(refused)
end

local is_ours = holder and string.find(holder, '^lc[01][:+]')
if is_ours and (n or string.sub(holder, 1, 5) == 'lc1+p') and string.sub(holder, 1, 5) ~= mark then
  return refuse_mode(known, own, holder)
end
-- The queue may be in another mode, too. Shared requests have a band of their own, and permits are in that of exclusive requests.
local first = redis.pcall('ZRANGEBYSCORE', queue, n and 0 or BAND, '+inf', 'LIMIT', 0, 1)[1]
if first and first ~= own then
  local _, _, _, first_kind = string.match(first, ENTRY)
  if first_kind and (tonumber(first_kind) == nil) == (n ~= nil) then
    return refuse_mode(known, own, holder)
  end
end

local function remaining()
  local soonest = n and is_ours and redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')
  if soonest and soonest[2] and soonest[1] ~= '#' then
    return math.max(0, tonumber(soonest[2]) - now_ms)
  end
  return redis.call('PTTL', lock)
end

local ours = is_ours and string.sub(holder, 1, 3) == 'lc1' and 1 or 0
if mode == 'try' then
  return {0, remaining(), 0, ours, 1, 0, label_of(holder or '')}
end

if place == 0 then
  added = redis.pcall('ZADD', queue, 'NX', now + band, own)
end
if type(added) == 'table' then
  -- A key of another type under the queue's name is no queue: the waiters poll until it is deleted.
  return {0, remaining(), 0, 0}
end
redis.call('PEXPIRE', queue, QUEUE_EXPIRY)
if holder and not string.find(holder, '^lc1%+') then
  -- The phase is an exclusive one, also if its holder took the lock without the queue.
  redis.pcall('ZREM', beats, '#')
end
if mode == 'wait' then
  return {0, -2, added == 1 and now or 0, ours}
end

note_check(own)
if place == 0 then
  place = tonumber(redis.call('ZSCORE', queue, own)) - band
end
local first_of_kind = redis.call('ZRANGEBYSCORE', queue, band, '+inf', 'LIMIT', 0, 1)[1]
local stamp = next_token(known)
if not stamp then
  return {0, remaining(), place, ours}
end
return {0, remaining(), place, ours, first_of_kind == own and 1 or 0, stamp, label_of(holder or '')}
