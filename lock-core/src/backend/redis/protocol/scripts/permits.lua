-- Permits: a lock that up to n requests hold at the same time, each with a number below n.
--
-- The entry of each holder is in two sets: the holders, with the end of its lease, and the permits, with its number. A single call,
-- enter_permits(), adds it to both. A single call removes it from both: its release (release_non_exclusive.lua), or, if its process is
-- gone, settle() (holders.lua) after its lease has ended. The number of held permits is the size of the set. There is no separate
-- count, so no permit can leak. Anything else that removes entries removes them all, with the marker, or makes the sizes of the two
-- sets differ: see has_room().

-- Returns true if a request for one of `n` permits may enter, because fewer than n are held. One of the first n permits is then free,
-- even if other requests use another n. If the permits or the holders were evicted, the sizes of the sets differ, and nothing enters
-- until the marker has expired.
local function has_room(n)
  local holders, permits = KEYS[5], KEYS[6]
  local counted = redis.call('ZCARD', permits)
  return counted < n and redis.call('ZCARD', holders) == counted + 1
end

-- The lowest free permit.
local function lowest_permit()
  local permits = KEYS[6]
  local low, high = 0, redis.call('ZCARD', permits)
  if high == 0 or redis.call('ZCOUNT', permits, 0, high - 1) == high then
    return high
  end
  -- A permit below the number of held permits is free.
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

-- Admits an entry that was removed from the queue. Returns whether a fencing token could be issued.
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
