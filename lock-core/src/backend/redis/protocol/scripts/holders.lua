-- Non-exclusive holders, in shared or permits mode: their marker and their leases.
--
-- A holder is an entry in the set of holders, with the end of its lease. If it has a permit, it is also in the set of permits. A
-- single call adds it to both, see phases.lua and permits.lua, and a single call removes it from both: its release, or settle()
-- after its lease has ended.

local function milliseconds(q)
  return math.floor(microseconds(q) / 1000)
end

local function is_shared(holder)
  return holder and string.sub(holder, 1, 5) == 'lc1+s'
end

local function is_permits(holder)
  return holder and string.sub(holder, 1, 5) == 'lc1+p'
end

-- Sets the marker's expiry after the set of holders was evicted. Holders that are not in it may rely on the marker, so its expiry
-- is no longer shortened. `ends`: the last end of a lease in the set, if it was recreated.
local function keep_marker(q, ends)
  local lock, holders = KEYS[1], KEYS[5]
  local left = redis.call('PTTL', lock)
  if ends then
    if left < tonumber(ends) - milliseconds(q) then
      redis.call('PEXPIREAT', lock, ends)
    end
    -- The first holder to enter since then has created the set, without an expiry.
    redis.call('PEXPIREAT', holders, ends)
  elseif left == -1 and q.own_ttl then
    -- Another client removed the expiry, and no renewal has set it again: the holders are gone, and their set has expired. If the
    -- set was evicted instead, the holders are gone after at most their ttl, which is usually also the ttl of this request.
    redis.call('PEXPIRE', lock, q.own_ttl)
  end
end

-- Removes holders whose lease has ended, and sets the marker's expiry to the latest end of the others. If no holder is left, the
-- lock is free.
local function settle(q)
  local lock, holders, permits = KEYS[1], KEYS[5], KEYS[6]
  local has_permits = is_permits(q.holder)
  if has_permits then
    local over = redis.call('ZRANGEBYSCORE', holders, '-inf', milliseconds(q))
    if over[1] then
      redis.call('ZREM', holders, unpack(over))
      redis.call('ZREM', permits, unpack(over))
    end
  else
    redis.call('ZREMRANGEBYSCORE', holders, '-inf', milliseconds(q))
  end
  local last = redis.call('ZREVRANGE', holders, 0, 1, 'WITHSCORES')
  if last[1] ~= '#' then
    keep_marker(q, last[2])
  elseif last[3] then
    redis.call('PEXPIREAT', lock, last[4])
    redis.call('PEXPIREAT', holders, last[4])
    if has_permits then
      redis.call('PEXPIREAT', permits, last[4])
    end
  else
    redis.call('DEL', lock, holders, permits)
    q.holder = nil
  end
end

-- Returns 1 if a request is waiting that a non-exclusive holder must know about: an exclusive one if the lock is
-- shared, or any one if it has permits. Otherwise returns 0. A key of another type is not a queue.
local function is_contended(q)
  local queue = KEYS[3]
  local waiting
  if is_shared(q.holder) then
    waiting = redis.pcall('ZCOUNT', queue, OTHERS, '+inf')
  else
    waiting = redis.pcall('EXISTS', queue)
  end
  return type(waiting) == 'number' and waiting > 0 and 1 or 0
end
