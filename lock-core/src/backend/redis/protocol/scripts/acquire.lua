-- Acquires a lock in any mode, if the request may enter now or has entered already. Otherwise joins the queue, or checks its place there.
--
-- The keys are those of queue.lua. An exclusive request may be sent with only the first four, while its slot is being moved. The
-- lock then has a holder: the request joins the queue or checks its place, and admits nothing.
--
-- ARGV[1]  the owner token.
-- ARGV[2]  the ttl in milliseconds.
-- ARGV[3]  the largest fencing token that the caller knows.
-- ARGV[4]  the number of fencing tokens wanted. Only an exclusive holder gets more than one.
-- ARGV[5]  'try': do not wait; 'wait': join the queue, for the first time; a number: wait, at any later time.
--          The number is the place from the last reply; 0: none yet.
-- ARGV[6]  its entry without the owner token: the channel of the caller, a number, the ttl, and the kind.
-- ARGV[7]  if present: the process waits by polling, since grants cannot reach it. A mark reports this for that many milliseconds.
--
-- Each argument costs the server as much as a comparison, so there are few.
--
-- Returns {1, first fencing token, how many} if acquired exclusively.
-- Returns {2, result} if the body is to run once and has run: its result is in KEYS[7].
-- Returns {1, fencing token, contended, permit, more} if acquired in another mode.
-- Contended 1: an exclusive entry is queued, or for permits, any entry. The permit is 0 if shared.
-- More 1: the rest of a batch waits for the next call of release.lua, renew.lua, or this program.
-- Returns {0, remaining milliseconds, place, ours} if busy.
-- Remaining -1: without an expiry; -2: not known. For permits: until the first lease ends. Place 0: not known yet.
-- Ours 1: the holder is a process like this one, and its release sends a grant; 0: it is not.
-- The replies to 'try' and to a number have three more values: next, a stamp and the label. Without a stamp, they have none of these.
-- Next 1: the entry is the first of its band of the queue; 0: it is not.
-- The stamp: a grant message that was sent before this reply has a smaller one, and is stale. 0 if there is no entry.
-- The label is the holder's; empty if it has none.
-- Returns an error LOCKMODE if the lock or its queue is in another mode: permits and the other two modes exclude each other.
--
-- Changes any of the keys except the result: it admits every entry that may enter, see phases.lua.
--
-- A script is not rolled back, so steps that can fail precede the write of the lock. Advancing the clock is one of them, and
-- harmless if the rest fails.
--
-- This file is for exclusive requests that meet an exclusive holder, or a free lock without a queue. All others continue in
-- acquire_non_exclusive.lua.

local TOKEN, MODE = ARGV[1], ARGV[5]
local KIND = string.match(ARGV[6], ' (%w+)$')
-- Kind 'o' runs a body once, and is exclusive like 'x'.
local IS_ALONE = KIND == 'x' or KIND == 'o'
-- The offset of the entry's band of the queue: its score is its place plus this offset.
local OWN_BAND = KIND == 's' and 0 or BAND

local function label_of(token)
  return string.match(token, '^lc[01]:(.*):') or ''
end

-- Acquires the lock exclusively for the caller, which may already hold it. Returns the reply.
local function take_alone(q)
  local lock, asked = KEYS[1], KEYS[8]
  local first, taken = take_tokens(q, tonumber(ARGV[4]))
  if not first then
    return redis.error_reply(q.refused)
  end
  -- If the lock is ours already, it may have a longer ttl: never shorten it.
  if not q.holder or redis.call('PTTL', lock) < tonumber(ARGV[2]) then
    redis.call('SET', lock, TOKEN, 'PX', ARGV[2])
  end
  if ARGV[7] and asked then
    -- The process's own mark must not end its batch of hand-overs. Another polling process soon sets the mark again.
    redis.pcall('DEL', asked)
  end
  return {1, first, taken}
end

-- Adds the entry to the queue, or restores it at its place. Returns the number of added entries; nothing if there can be no queue.
local function join(q)
  local queue = KEYS[3]
  local added
  if q.place == 0 then
    added = redis.pcall('ZADD', queue, 'NX', microseconds(q) + OWN_BAND, q.own)
  else
    -- If the clock was set back, a place ahead of it would let all later requests overtake this one.
    q.place = math.min(q.place, microseconds(q))
    added = redis.pcall('ZADD', queue, q.place + OWN_BAND, q.own)
  end
  if type(added) == 'table' then
    -- A key of another type under the queue's name is not a queue: waiters poll until it is deleted.
    return nil
  end
  redis.call('PEXPIRE', queue, '30000')
  return added
end

-- Notes that the process is alive. Entries that were not checked for too long are removed from the beats, which would otherwise
-- outgrow the queue.
local function beat(q)
  local beats = KEYS[4]
  local now = microseconds(q)
  if type(redis.pcall('ZADD', beats, now, q.own)) == 'number' then
    redis.call('ZREMRANGEBYSCORE', beats, '-inf', now - SILENT)
    redis.call('PEXPIRE', beats, '2200')
  end
end

-- Returns the reply to a request that does not get the lock. `added`: the result of join(), if it waits.
local function busy(q, added, ours, remaining, label)
  local queue, asked = KEYS[3], KEYS[8]
  if MODE == 'wait' then
    return {0, remaining, added == 1 and microseconds(q) or 0, ours}
  end
  if ARGV[7] and asked then
    redis.pcall('SET', asked, string.match(q.own, '^%S+'), 'PX', ARGV[7])
  end
  if MODE == 'try' then
    return {0, remaining, 0, ours, 1, 0, label}
  end
  beat(q)
  if q.place == 0 then
    q.place = tonumber(redis.call('ZSCORE', queue, q.own)) - OWN_BAND
  end
  local first = redis.call('ZRANGEBYSCORE', queue, KIND == 's' and '0' or OTHERS, '+inf', 'LIMIT', '0', '1')[1]
  local stamp = next_token(q)
  if not stamp then
    -- The clock cannot be advanced, so no grants are sent, either.
    return {0, remaining, q.place, ours}
  end
  return {0, remaining, q.place, ours, first == q.own and 1 or 0, stamp, label}
end

local lock, queue, holders, result = KEYS[1], KEYS[3], KEYS[5], KEYS[7]
local q = {
  known = tonumber(ARGV[3]),
  own = ARGV[6] .. ' ' .. TOKEN,
  holder = redis.call('GET', lock) or nil,
  place = tonumber(MODE) or 0,
  now = nil,
  refused = nil,
}
-- The result of the body that is to run once, if it has run.
local STORED = KIND == 'o' and redis.call('GET', result)

if IS_ALONE and not STORED then
  if q.holder == TOKEN then
    -- Granted in the meantime, or by an earlier request whose reply was lost.
    leave(q.own)
    return take_alone(q)
  end
  if not q.holder and holders and redis.call('EXISTS', queue) == 0 then
    return take_alone(q)
  end
  if q.holder and string.sub(q.holder, 1, 4) == 'lc1:' then
    local added = MODE ~= 'try' and join(q)
    if added == nil then
      return {0, redis.call('PTTL', lock), 0, 0}
    end
    return busy(q, added, 1, redis.call('PTTL', lock), label_of(q.holder))
  end
end
