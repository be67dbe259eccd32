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
-- Returns {1, contended, first fencing token, how many} with tokens: contended 1 if another process is queued, 2 if one polls. If none can be given, the
-- reply has only the first two.
--
-- Never shortens: a renewal that was delayed on its way must not cut the lease of a later one.
if not ARGV[5] then
  -- A key of another type is no queue: then nothing waits.
  local waiting = redis.pcall('ZCARD', KEYS[3])
  local contended = type(waiting) == 'number' and waiting > 0 and 1 or redis.pcall('EXISTS', KEYS[8]) == 1 and 2 or 0
  local first, taken = take_tokens(tonumber(ARGV[3]), tonumber(ARGV[4]))
  -- The lease is renewed, and a refusal must not make the reply an error.
  return first and {1, contended, first, taken} or {1, contended}
end

local is_moving = not KEYS[4]
if is_moving then
  KEYS[5], KEYS[6] = KEYS[2], KEYS[3]
end
local holders = KEYS[5]
local holder = redis.pcall('GET', KEYS[1])
-- A key of another type is another's, too. Any other error is returned.
if type(holder) == 'table' and not string.find(holder.err, 'WRONGTYPE', 1, true) then
  return holder
end
if type(holder) ~= 'string' or string.sub(holder, 1, 4) ~= 'lc1+' then
  return 0
end
local own = ARGV[5] .. ' ' .. ARGV[1]
local now_ms = math.floor(microseconds() / 1000)
local ends = redis.call('ZSCORE', holders, own)
if not ends or tonumber(ends) <= now_ms then
  return 0
end
-- Takes nothing out. But it is a write that a server permits when it is out of memory, and then it permits the others of the call.
redis.call('ZREM', holders, '')
redis.call('ZADD', holders, 'GT', now_ms + ARGV[2], own)
settle(holder)
if is_moving then
  return {1, 0}
end
-- The lease is renewed, and nothing that comes now may make the reply an error. An entry that is taken out before an error comes back
-- with its next check.
if redis.pcall('EXISTS', KEYS[3]) == 1 then
  pcall(advance, tonumber(ARGV[3]), nil, holder)
end
return {1, is_contended(holder)}
