-- Releases a lock in any mode, if the owner token still holds it, and lets waiters in. Takes an entry out of the queue, too.
--
-- The keys are those of queue.lua. The release of an exclusive request may be sent with the first four, see there. Then it frees the lock, or
-- grants it to an exclusive entry that is the first of the queue. Other waiters are let in by their next checks.
--
-- ARGV[1]  the owner token.
-- ARGV[2]  the largest fencing token that the asking process knows, the lease's own included.
-- ARGV[3]  for how many milliseconds to keep the lock, or the holder and its permit; 0 or missing: release now.
-- ARGV[4]  the entry of this token, without the token. An exclusive request that cannot be queued leaves it out.
-- ARGV[5]  if there: the result of a run, to be stored under KEYS[7].
-- ARGV[6]  for how many milliseconds the result is kept.
--
-- Returns 1 if released, 0 if it was no holder, 2 if the server has no memory for the result: then nothing has changed.
local lock, queue, holders, permits = KEYS[1], KEYS[3], KEYS[5], KEYS[6]
local token, known, keep = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3] or 0)
local own = ARGV[4] and ARGV[4] .. ' ' .. token
local holder = redis.pcall('GET', lock)
if holder == token and ARGV[5] then
  -- The first write of the call: a server that is out of memory would permit it after another one, and results are large.
  local stored = redis.pcall('SET', KEYS[7], ARGV[5], 'PX', ARGV[6])
  if stored.err then
    return string.find(stored.err, 'OOM ', 1, true) and 2 or stored
  end
end
if own then
  leave(own)
end
-- A key of another type is another's. Any other error is returned.
if type(holder) == 'table' then
  return string.find(holder.err, 'WRONGTYPE', 1, true) and 0 or holder
end

if holder == token and keep > 0 then
  redis.call('PEXPIRE', lock, ARGV[3])
  -- The key no longer holds the owner token, so that a later renewal, or a copy of the acquire, cannot prolong it. A server that is
  -- out of memory leaves the value as it is: a release must succeed there, too.
  redis.pcall('SET', lock, token .. '.', 'KEEPTTL')
  return 1
end

if holder == token then
  -- Mostly the next one is exclusive, too, and takes fewer commands than advance() needs. Shared ones would stand first.
  -- Taking an entry out is the first write. A server that is out of memory permits it, and then the other writes of the same call.
  -- Bounded by the queue: each round takes an entry out.
  local first = redis.pcall('ZPOPMIN', queue)
  while first[1] do
    local channel, number, ttl, kind, waiter = string.match(first[1], ENTRY)
    if kind and kind ~= 'x' then
      -- If it cannot be put back, its next check does that.
      redis.pcall('ZADD', queue, first[2], first[1])
      break
    end
    -- A member that is no entry was not written by us, and is passed over, too.
    if kind and not is_silent(first[1], first[2] - BAND) then
      local fencing = next_token(known)
      if not fencing then
        return redis.call('DEL', lock)
      end
      if notify(channel, number, waiter, string.format('%.0f', fencing)) then
        redis.call('SET', lock, waiter, 'PX', ttl)
        return 1
      end
    end
    first = redis.pcall('ZPOPMIN', queue)
  end
  -- The exclusive phase ends.
  redis.pcall('ZREM', KEYS[4], '#')
  if not holders or not advance(known) then
    redis.call('DEL', lock)
  end
  return 1
end

if not holder then
  if holders then
    advance(known)
  end
  return 0
end
if string.sub(holder, 1, 4) ~= 'lc1+' then
  if own then
    -- The phase is an exclusive one, also if its holder took the lock without the queue.
    redis.pcall('ZREM', KEYS[4], '#')
  end
  return 0
end

if not holders then
  return 0
end

local released = 0
local ends = own and redis.call('ZSCORE', holders, own)
if ends then
  local now_ms = math.floor(microseconds() / 1000)
  released = tonumber(ends) > now_ms and 1 or 0
  redis.call('ZREM', holders, own)
  local permit = string.sub(holder, 5, 5) == 'p' and redis.call('ZSCORE', permits, own)
  if permit then
    redis.call('ZREM', permits, own)
  end
  if released == 1 and keep > 0 then
    -- The entry no longer has the owner token, so that a later renewal, or a copy of the acquire, cannot prolong it.
    redis.call('ZADD', holders, now_ms + keep, own .. '.')
    if permit then
      redis.call('ZADD', permits, permit, own .. '.')
    end
  end
end
-- Also after an exclusive request: the shared entries behind it may have waited for it only.
advance(known, nil, settle(holder))
return released
