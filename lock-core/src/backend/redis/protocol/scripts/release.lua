-- Releases a lock in any mode, if the owner token still holds it, and admits waiters. Also removes an entry from the queue.
--
-- The keys are the first seven of queue.lua. The release of an exclusive request may be sent with only the first four, while its
-- slot is being moved. It then frees the lock, or grants it to the first entry of the queue if that is exclusive. Other waiters are
-- admitted by their next checks.
--
-- ARGV[1]  the owner token.
-- ARGV[2]  the largest fencing token that the caller knows, including those of the lease.
-- ARGV[3]  for how many milliseconds to keep the lock, or the holder and its permit; 0 or missing: release now.
-- ARGV[4]  the entry of this token, without the token. An exclusive request that cannot be queued leaves it out.
-- ARGV[5]  if present: the result of a run, to be stored in KEYS[7].
-- ARGV[6]  for how many milliseconds the result is stored.
--
-- Returns 1 if released, 0 if the token did not hold the lock, and 2 if nothing was changed because the server has no memory for the
-- result.
--
-- Changes any of the keys: it admits every entry that may enter, see phases.lua. Apart from storing the result, it never fails for
-- lack of memory.
--
-- This file is for a lock that was held alone, and hands it over to an exclusive entry. Everything else continues in release_non_exclusive.lua.

local TOKEN = ARGV[1]
-- For how many milliseconds the lock is kept.
local KEEP = tonumber(ARGV[3] or 0)
-- The entry of the caller, which leaves.
local LEAVING = ARGV[4] and ARGV[4] .. ' ' .. TOKEN

-- Stores the result of a run. Returns nothing if that succeeded; otherwise the reply of the release.
--
-- It is the first write of the call, because a server that is out of memory would permit it after another one, and results are large.
local function store_result(value, keep)
  local result = KEYS[7]
  local stored = redis.pcall('SET', result, value, 'PX', keep)
  if stored.err then
    return string.find(stored.err, 'OOM ', 1, true) and 2 or stored
  end
end

-- Grants the lock to the first entry of the queue if its kind is x, or frees the lock if there is no entry. Returns false if the
-- first entry has another kind, or the key is not a queue. Shared entries precede all others in the queue.
--
-- Usually the next entry is exclusive, too, and this needs fewer commands than advance(). The first write removes an entry. A server
-- that is out of memory permits that, and then the other writes of the call. The loop is bounded by the queue: each round removes an
-- entry.
local function hand_over(q)
  local lock, queue = KEYS[1], KEYS[3]
  local first = redis.pcall('ZPOPMIN', queue)
  while first[1] do
    local entry = parse(first[1])
    if entry and entry.kind ~= 'x' then
      -- If this cannot restore the entry, its next check does.
      redis.pcall('ZADD', queue, first[2], first[1])
      return false
    end
    -- A member that is not an entry was not written by us, and is skipped, too.
    if entry and not is_silent(q, first[1], first[2] - BAND) then
      local fencing = next_token(q)
      if not fencing then
        redis.call('DEL', lock)
        return true
      end
      if notify(entry, string.format('%.0f', fencing)) then
        redis.call('SET', lock, entry.token, 'PX', entry.ttl)
        return true
      end
    end
    first = redis.pcall('ZPOPMIN', queue)
  end
  if first.err then
    return false
  end
  -- The exclusive phase ends.
  drop_cut()
  redis.call('DEL', lock)
  return true
end

local lock, holders = KEYS[1], KEYS[5]
local holder = redis.pcall('GET', lock)
if holder == TOKEN and ARGV[5] then
  local failed = store_result(ARGV[5], ARGV[6])
  if failed then
    return failed
  end
end
if LEAVING then
  leave(LEAVING)
end
-- A key of another type belongs to another client. Other errors are returned.
if type(holder) == 'table' then
  return string.find(holder.err, 'WRONGTYPE', 1, true) and 0 or holder
end
local q = {known = tonumber(ARGV[2]), holder = holder or nil, now = nil, refused = nil}
if holder == TOKEN then
  if KEEP > 0 then
    redis.call('PEXPIRE', lock, ARGV[3])
    -- The key no longer holds the owner token, so that a later renewal, or a copy of the acquire, cannot extend it. A server that
    -- is out of memory leaves the value unchanged: a release must succeed there, too.
    redis.pcall('SET', lock, TOKEN .. '.', 'KEEPTTL')
    return 1
  end
  if hand_over(q) then
    return 1
  end
elseif q.holder and not is_marker(q.holder) then
  if LEAVING then
    -- The phase is exclusive, even if its holder took the lock without the queue.
    drop_cut()
  end
  return 0
end
if not holders then
  -- If hand_over() restored the only entry of the queue, its key is new, and has no expiry.
  redis.pcall('PEXPIRE', KEYS[3], '30000')
  return q.holder == TOKEN and redis.call('DEL', lock) or 0
end
-- The lock has non-exclusive holders, or is free, or its next entry is not exclusive: release_non_exclusive.lua and release_waiters.lua
-- follow.
