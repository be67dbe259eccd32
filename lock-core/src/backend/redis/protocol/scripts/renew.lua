-- Renews a lease, in any mode. Takes fencing tokens in advance, for tasks to which the process hands an exclusive lease. Lets waiters
-- in beside a holder, if they may enter: the next part of a batch, for example.
--
-- The keys are those of queue.lua. An exclusive lease declares the lock alone if it takes no tokens. While its slot moves, it declares no more
-- than the lock in any case, and takes none. A lease beside others then declares the lock, the holders, and the permits if it has one:
-- it lets no waiters in.
--
-- ARGV[1]  the owner token.
-- ARGV[2]  the ttl in milliseconds.
-- ARGV[3]  the largest fencing token that the asking process knows.
-- ARGV[4]  how many fencing tokens it would like: 0 beside others.
-- ARGV[5]  its entry without the owner token, if the lease is held beside others.
--
-- Without tokens, an exclusive lease needs the first two only. In any case renew_short.lua has renewed it.
--
-- Returns 0 if the key is gone or another's. Otherwise the lease lasts for the ttl at least.
-- Returns 1 for an exclusive lease without tokens.
-- Returns {1, contended} beside others: contended as in acquire.lua.
-- Returns {1, contended, first fencing token, how many} with tokens: contended 1 if another process is queued, 2 if one polls. If none can
-- be given, the reply has only the first two.
--
-- Never shortens: a renewal that was delayed on its way must not cut the lease of a later one.
--
-- Changes the lock's expiry, the fencing clock, and beside others any key but the result and the mark: it lets in whoever may enter, see
-- phases.lua.
--
-- This file is for an exclusive lease. A lease beside others goes on to renew_beside.lua.
local queue, asked = KEYS[3], KEYS[8]
local q = {known = tonumber(ARGV[3]), holder = nil, now = nil, refused = nil}
if not ARGV[5] then
  -- A key of another type is no queue: then nothing waits.
  local waiting = redis.pcall('ZCARD', queue)
  local contended = type(waiting) == 'number' and waiting > 0 and 1 or redis.pcall('EXISTS', asked) == 1 and 2 or 0
  local first, taken = take_tokens(q, tonumber(ARGV[4]))
  -- The lease is renewed, and a refusal must not make the reply an error.
  return first and {1, contended, first, taken} or {1, contended}
end
