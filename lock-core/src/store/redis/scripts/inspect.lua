-- Looks at a lock and its queue.
--
-- The keys are those of queue.lua. Only the first one has to be there: without the others nothing waits, and no label is found.
--
-- Returns {holder, remaining milliseconds, waiting requests, holders, label}. Holder: the owner token of an exclusive one, or the
-- marker of those beside each other; remaining: of the longest lease, -1: without an expiry; holders: those whose lease has not
-- ended; label: of one of them, empty if it has none. Nothing if it is free.
local holder = redis.call('GET', KEYS[1])
if not holder then
  return {}
end
-- Nothing waits in what is no queue.
local waiting = KEYS[3] and redis.pcall('ZCARD', KEYS[3])
waiting = type(waiting) == 'number' and waiting or 0
local remaining = redis.call('PTTL', KEYS[1])
if string.sub(holder, 1, 4) ~= 'lc1+' or not KEYS[5] then
  return {holder, remaining, waiting, 1, label_of(holder)}
end
local now_ms = math.floor(microseconds() / 1000)
local holders = redis.call('ZCOUNT', KEYS[5], string.format('(%.0f', now_ms), '(9007199254740991')
return {holder, remaining, waiting, holders, label_of(holder)}
