-- The second part of release.lua: a lock with non-exclusive holders.

-- Removes the caller from the holders, and its permit from the permits, or keeps both for a while. Returns 1 if it was a
-- holder, or else 0.
local function leave_holders(q)
  local holders, permits = KEYS[5], KEYS[6]
  local ends = redis.call('ZSCORE', holders, LEAVING)
  if not ends then
    return 0
  end
  local now_ms = milliseconds(q)
  local released = tonumber(ends) > now_ms and 1 or 0
  redis.call('ZREM', holders, LEAVING)
  local permit = is_permits(q.holder) and redis.call('ZSCORE', permits, LEAVING)
  if permit then
    redis.call('ZREM', permits, LEAVING)
  end
  if released == 1 and KEEP > 0 then
    -- The entry no longer has the owner token, so that a later renewal, or a copy of the acquire, cannot extend it.
    redis.call('ZADD', holders, now_ms + KEEP, LEAVING .. '.')
    if permit then
      redis.call('ZADD', permits, permit, LEAVING .. '.')
    end
  end
  return released
end

if is_marker(q.holder) then
  q.released = LEAVING and leave_holders(q) or 0
  settle(q)
  if redis.call('EXISTS', KEYS[3]) == 0 then
    drop_cut()
    return q.released
  end
end
