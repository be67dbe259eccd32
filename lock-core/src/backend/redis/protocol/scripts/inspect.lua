-- Inspects a lock and its queue.
--
-- The keys are the first seven of queue.lua.
--
-- ARGV[1]  the largest number of holders, and of waiting requests, that are named
--
-- Returns {holder, remaining milliseconds, waiting requests, holders, leases, queue, result}; an empty list if the lock is free and
-- no result of a run is stored.
-- Holder: the owner token of an exclusive holder, or the marker of non-exclusive holders; empty if the lock is free.
-- Remaining: of the longest lease; -1: without an expiry.
-- Holders: the number of leases that have not ended. Leases: of the non-exclusive holders: the remaining milliseconds, the
-- permit, - without one, and the label, empty if it has none. The longest lease comes first.
-- Queue: the kind and the label of each waiting request, in the order of joining.
-- Result: for how many milliseconds the result of a run is stored; negative if there is none.
--
-- Changes nothing.
local MOST = tonumber(ARGV[1])

-- The kind and the label of an entry; both are empty if it is not one.
local function process_of(text)
  local entry = parse(text)
  return entry and entry.kind or '', entry and string.match(entry.token, '^lc[01]:(.*):') or ''
end

-- Adds the first entries of a band of the queue, with their places. `band`: the lowest score, the highest, and the number added to places.
local function add_waiters(found, band)
  -- A key of another type has no entries.
  local entries = redis.pcall('ZRANGEBYSCORE', KEYS[3], band[1], band[2], 'WITHSCORES', 'LIMIT', 0, MOST)
  for i = 1, entries.err and 0 or #entries, 2 do
    found[#found + 1] = {entries[i], tonumber(entries[i + 1]) - band[3]}
  end
end

-- The first requests of both bands, in the order of joining.
local function first_waiters()
  local found, queue = {}, {}
  add_waiters(found, {'-inf', '(' .. OTHERS, 0})
  add_waiters(found, {OTHERS, '+inf', BAND})
  table.sort(found, function(one, other) return one[2] < other[2] end)
  for i = 1, math.min(#found, MOST) do
    local kind, label = process_of(found[i][1])
    queue[i] = kind .. ' ' .. label
  end
  return queue
end

-- The leases of the non-exclusive holders. At least one, for lists.
local function leases_of(now_ms)
  local holders, permits, most = KEYS[5], KEYS[6], math.max(1, MOST)
  local found, leases = redis.call('ZREVRANGE', holders, 0, most, 'WITHSCORES'), {}
  for i = 1, #found, 2 do
    local text, left = found[i], tonumber(found[i + 1]) - now_ms
    if text ~= '#' and left > 0 and #leases < most then
      local permit = redis.pcall('ZSCORE', permits, text)
      local _, label = process_of(text)
      leases[#leases + 1] = string.format('%.0f %s %s', left, type(permit) == 'string' and permit or '-', label)
    end
  end
  return leases
end

local holder = redis.call('GET', KEYS[1])
local result = redis.call('PTTL', KEYS[7])
if not holder then
  return result > 0 and {'', -2, 0, 0, {}, {}, result} or {}
end
-- A key of another type is not a queue: nothing waits.
local waiting = redis.pcall('ZCARD', KEYS[3])
waiting = type(waiting) == 'number' and waiting or 0
local remaining = redis.call('PTTL', KEYS[1])
local queue = waiting > 0 and first_waiters() or {}
if not is_marker(holder) then
  return {holder, remaining, waiting, 1, {}, queue, result}
end
local now_ms = milliseconds({})
local holders = redis.call('ZCOUNT', KEYS[5], string.format('(%.0f', now_ms), '(9007199254740991')
return {holder, remaining, waiting, holders, leases_of(now_ms), queue, result}
