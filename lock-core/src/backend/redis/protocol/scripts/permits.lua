-- Permits: a lock that up to n requests hold at the same time, with a number below n each.
--
-- The holders of permits are in two sets, under their entries: the holders, with the end of the lease, and the permits, with the number.
-- An entry comes into both, and leaves both, in one call: it comes by enter_permits(), and leaves by its release (release_beside.lua), or,
-- whatever became of its process, by settle() (holders.lua) once its lease has ended. The number of permits that are held is the size of the
-- set. No count is kept beside it, so no permit can leak.

-- Whether a request for one of `n` permits may enter: fewer than n are held. Then one of the first n permits is free, even if
-- others have another n. If the permits or the holders were evicted, their numbers differ, and nothing enters until the marker
-- has ended.
local function has_room(n)
  local holders, permits = KEYS[5], KEYS[6]
  local counted = redis.call('ZCARD', permits)
  return counted < n and redis.call('ZCARD', holders) == counted + 1
end

-- The lowest permit that is free.
local function lowest_permit()
  local permits = KEYS[6]
  local low, high = 0, redis.call('ZCARD', permits)
  if high == 0 or redis.call('ZCOUNT', permits, 0, high - 1) == high then
    return high
  end
  -- A permit below the number of taken permits is free.
  high = high - 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if redis.call('ZCOUNT', permits, 0, middle) == middle + 1 then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- Lets an entry in that was taken out of the queue. Returns whether a fencing token could be given.
local function enter_permits(q, entry)
  local lock, holders, permits = KEYS[1], KEYS[5], KEYS[6]
  local fencing = next_token(q)
  if not fencing then
    return false
  end
  if not q.holder then
    redis.call('DEL', holders, permits)
  end
  local permit = lowest_permit()
  local contended = q.waiting > 0 and 1 or 0
  local more = q.left == 1 and contended or 0
  local is_own = entry.text == q.own
  if is_own then
    q.mine = {fencing, contended, permit, more}
  elseif not notify(entry, string.format('%.0f %.0f %d %d %d', fencing, fencing, contended, permit, more)) then
    return true
  end
  q.left = q.left - 1
  local ends = milliseconds(q) + (is_own and q.own_ttl or tonumber(entry.ttl))
  if not q.holder then
    q.holder = 'lc1+p:'
    redis.call('SET', lock, q.holder, 'PXAT', ends)
    redis.call('ZADD', holders, '9007199254740991', '#')
    drop_cut()
  end
  redis.call('ZADD', holders, ends, entry.text)
  redis.call('ZADD', permits, permit, entry.text)
  q.unsettled = true
  return true
end
