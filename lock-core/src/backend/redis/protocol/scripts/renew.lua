-- Renews a lease, in any mode. Prefetches fencing tokens, for tasks to which the process hands over an exclusive lease. Admits
-- waiters that may join a holder: for example, the next part of a batch.
--
-- The keys are those of queue.lua. The call for an exclusive lease declares only the lock if it takes no tokens, or while its slot
-- moves, when it takes none. While its slot moves, the call for a non-exclusive lease declares the lock, the holders and, if it has
-- a permit, the permits, and admits no waiters.
--
-- ARGV[1]  the owner token.
-- ARGV[2]  the ttl in milliseconds.
-- ARGV[3]  the largest fencing token that the caller knows.
-- ARGV[4]  the number of fencing tokens wanted: 0 if not exclusive.
-- ARGV[5]  its entry without the owner token, if the lease is not exclusive.
--
-- Without tokens, an exclusive lease needs only the first two arguments. Its renewal itself is in renew_short.lua, which runs first.
--
-- Returns 0 if the key is gone or belongs to another. Otherwise the lease lasts for at least the ttl.
-- Returns 1 for an exclusive lease without tokens.
-- Returns {1, contended} if not exclusive: contended as in acquire.lua.
-- Returns {1, contended, first fencing token, how many} with tokens. Contended is 1 if another process is queued, and 2 if one polls.
-- If no token can be issued, the reply has only the first two values.
--
-- Never shortens a lease: a renewal that was delayed in flight must not undo a later one.
--
-- Changes the lock's expiry, the fencing clock, and if not exclusive, any key except the result and the mark: it admits every entry
-- that may enter, see phases.lua.
--
-- This file is for an exclusive lease. A non-exclusive lease continues in renew_non_exclusive.lua.
local queue, asked = KEYS[3], KEYS[8]
local q = {known = tonumber(ARGV[3]), holder = nil, now = nil, refused = nil}
if not ARGV[5] then
  -- A key of another type is not a queue: nothing waits.
  local waiting = redis.pcall('ZCARD', queue)
  local contended = type(waiting) == 'number' and waiting > 0 and 1 or redis.pcall('EXISTS', asked) == 1 and 2 or 0
  local first, taken = take_tokens(q, tonumber(ARGV[4]))
  -- The lease has been renewed, so a refusal must not turn the reply into an error.
  return first and {1, contended, first, taken} or {1, contended}
end
