-- Looks at a lock and its queue.
--
-- The keys are those of queue.lua.
--
-- ARGV[1]  how many holders and how many waiting requests are named, at most
--
-- Returns {holder, remaining milliseconds, waiting requests, holders, leases, queue, result}; nothing if the lock is free, and no
-- result of a run is kept.
-- Holder: the owner token of an exclusive holder, or the marker of holders beside each other; empty if the lock is free.
-- Remaining: of the longest lease; -1: without an expiry.
-- Holders: the number of leases that have not ended. Leases: of the holders beside each other: the remaining milliseconds, the permit,
-- - without one, and the label, empty if it has none. The longest lease comes first.
-- Queue: the kind and the label of each waiting request, in the order of joining.
-- Result: for how many milliseconds the result of a run is kept; negative if there is none.
local function process_of(entry)
  local _, _, _, kind, token = string.match(entry, ENTRY)
  return string.match(token or '', '^lc[01]:(.*):') or '', kind
end

-- The first requests of both queues, in the order of joining.
local function first_waiters()
  local found, queue = {}, {}
  for _, band in ipairs({{'-inf', '(' .. OTHERS, 0}, {OTHERS, '+inf', BAND}}) do
    -- There is none in what is no queue.
    local entries = redis.pcall('ZRANGEBYSCORE', KEYS[3], band[1], band[2], 'WITHSCORES', 'LIMIT', 0, ARGV[1])
    for i = 1, entries.err and 0 or #entries, 2 do
      found[#found + 1] = {entries[i], tonumber(entries[i + 1]) - band[3]}
    end
  end
  table.sort(found, function(one, other) return one[2] < other[2] end)
  for i = 1, math.min(#found, tonumber(ARGV[1])) do
    local label, kind = process_of(found[i][1])
    queue[i] = (kind or '') .. ' ' .. label
  end
  return queue
end

local holder = redis.call('GET', KEYS[1])
local result = redis.call('PTTL', KEYS[7])
if not holder then
  return result > 0 and {'', -2, 0, 0, {}, {}, result} or {}
end
-- A key of another type is no queue: then nothing waits.
local waiting = redis.pcall('ZCARD', KEYS[3])
waiting = type(waiting) == 'number' and waiting or 0
local remaining = redis.call('PTTL', KEYS[1])
local queue = waiting > 0 and first_waiters() or {}
if string.sub(holder, 1, 4) ~= 'lc1+' then
  return {holder, remaining, waiting, 1, {}, queue, result}
end
local now_ms = math.floor(microseconds() / 1000)
local holders = redis.call('ZCOUNT', KEYS[5], string.format('(%.0f', now_ms), '(9007199254740991')
-- One at least: a list shows it.
local most = math.max(1, tonumber(ARGV[1]))
local found, leases = redis.call('ZREVRANGE', KEYS[5], 0, most, 'WITHSCORES'), {}
for i = 1, #found, 2 do
  local entry, left = found[i], tonumber(found[i + 1]) - now_ms
  if entry ~= '#' and left > 0 and #leases < most then
    local permit = redis.pcall('ZSCORE', KEYS[6], entry)
    local label = process_of(entry)
    leases[#leases + 1] = string.format('%.0f %s %s', left, type(permit) == 'string' and permit or '-', label)
  end
end
return {holder, remaining, waiting, holders, leases, queue, result}
