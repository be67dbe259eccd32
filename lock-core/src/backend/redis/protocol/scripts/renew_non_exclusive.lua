-- The second part of renew.lua: a non-exclusive lease.

-- Renews the lease of an entry. Returns whether it is a holder.
local function renew_non_exclusive(q, text)
  local holders = KEYS[5]
  local ends = redis.call('ZSCORE', holders, text)
  if not ends or tonumber(ends) <= milliseconds(q) then
    return false
  end
  -- This removes nothing, but is a write that a server permits even when it is out of memory, after which it permits the others.
  redis.call('ZREM', holders, '')
  redis.call('ZADD', holders, 'GT', milliseconds(q) + ARGV[2], text)
  settle(q)
  return true
end

local lock, queue = KEYS[1], KEYS[3]
local has_few_keys = not KEYS[4]
if has_few_keys then
  KEYS[5], KEYS[6] = KEYS[2], KEYS[3]
end
local holder = redis.pcall('GET', lock)
-- A key of another type belongs to another client. Other errors are returned.
if type(holder) == 'table' then
  return string.find(holder.err, 'WRONGTYPE', 1, true) and 0 or holder
end
q.holder = holder
if not is_marker(holder) or not renew_non_exclusive(q, ARGV[5] .. ' ' .. ARGV[1]) then
  return 0
end
if has_few_keys or redis.pcall('EXISTS', queue) ~= 1 then
  return {1, 0}
end
