-- The rest of acquire.lua: non-exclusive requests, and exclusive requests that find non-exclusive holders, a queue at a free
-- lock, a holder of another library, or a result.

-- The number of permits of which the request wants one; nothing in other modes.
local N = tonumber(KIND)

local beats, holders = KEYS[4], KEYS[5]

-- Replies with the result of the body that has run, and abandons the request.
local function give_up_with_result(q)
  local lock = KEYS[1]
  -- The lock was granted anyway, by a script that did not find the result while the slot was being moved.
  if q.holder == TOKEN then
    redis.call('DEL', lock)
    q.holder = nil
  end
  leave(q.own)
  -- The entries after it may now enter, or get the result.
  if not q.holder then
    advance(q)
  end
  return {2, STORED}
end

-- Returns the reply if a non-exclusive request was granted in the meantime, or by an earlier request whose reply was lost. Returns
-- nothing if it is not a holder.
local function granted_before(q)
  local holders, permits = KEYS[5], KEYS[6]
  local text, n = q.own, N
  local ends = redis.call('ZSCORE', holders, text)
  if not ends then
    return nil
  end
  local permit = n and redis.call('ZSCORE', permits, text) or not n and 0
  if not permit then
    -- The permits were evicted, so the number of this one is unknown. The request enters again when a permit is free.
    redis.call('ZREM', holders, text)
    settle(q)
    return nil
  end
  if tonumber(ends) <= milliseconds(q) then
    return nil
  end
  local fencing = n and next_token(q) or string.match(q.holder, '(%d+):$')
  if not fencing then
    return redis.error_reply(q.refused)
  end
  leave(text)
  -- The lease may be longer: never shorten it.
  redis.call('ZADD', holders, 'GT', milliseconds(q) + q.own_ttl, text)
  settle(q)
  return {1, tonumber(fencing), is_contended(q), tonumber(permit), 0}
end

-- Admits the waiters that may enter, and then this request. Returns the reply if it has entered, or if no fencing
-- token could be issued.
--
-- The waiters go first, so that neither a newcomer nor a request whose entry was removed as silent overtakes the queue. The lock
-- may be free for them because its holder crashed.
local function serve(q)
  local queue = KEYS[3]
  if is_marker(q.holder) and (KIND ~= 's' or redis.call('EXISTS', queue) == 1) then
    settle(q)
  end
  advance(q, not IS_ALONE and KIND)
  if q.mine then
    return {1, unpack(q.mine)}
  end
  return q.refused and redis.error_reply(q.refused)
end

if STORED then
  return give_up_with_result(q)
end
q.own_ttl = tonumber(ARGV[2])
local reply = not IS_ALONE and is_marker(q.holder) and granted_before(q)
if reply then
  return reply
end
if MODE ~= 'try' and (KIND == 's' and not q.holder or not N and is_marker(q.holder)) then
  -- If the clock was set back, a cut ahead of it would let later shared requests overtake the waiting exclusive one.
  redis.pcall('ZADD', beats, 'XX', 'LT', microseconds(q) + BAND, '#')
end
if holders and (not q.holder or is_marker(q.holder)) then
  reply = serve(q)
  if reply then
    return reply
  end
  if IS_ALONE and (not q.holder or q.holder == TOKEN) then
    return take_alone(q)
  end
end

-- Returns true if the lock or its queue is in another mode than the request. `ours`: the holder is a process like this one.
local function is_other_mode(q, ours)
  local queue = KEYS[3]
  local n, has_permits = N, is_permits(q.holder)
  if has_permits and not n or n and not has_permits and q.holder and string.find(q.holder, '^lc[01][:+]') then
    return true
  end
  if ours and not is_marker(q.holder) then
    return false
  end
  -- A key of another type is not a queue: nothing is found.
  local first = redis.pcall('ZRANGEBYSCORE', queue, n and '0' or OTHERS, '+inf', 'LIMIT', '0', '1')[1]
  local entry = first and parse(first)
  return entry and (tonumber(entry.kind) == nil) == (n ~= nil)
end

-- The first exclusive entry ends a shared phase for requests that come after it. Returns whether this entry is the first, or the
-- request does not wait.
local function set_cut(q, added)
  local queue, beats = KEYS[3], KEYS[4]
  if MODE == 'try' then
    return true
  end
  -- If the entry was in the queue already, the cut was lost with the beats, since all waiters were silent. The place of this entry
  -- is then the cut, unless the clock was set back.
  local latest = microseconds(q) + BAND
  local cut = added == 1 and latest or math.min(redis.call('ZSCORE', queue, q.own), latest)
  redis.pcall('ZADD', beats, 'NX', cut, '#')
  redis.pcall('PEXPIRE', beats, '2200')
  return redis.call('ZRANGEBYSCORE', queue, OTHERS, '+inf', 'LIMIT', '0', '1')[1] == q.own
end

-- Asks the processes of a shared phase to admit no further task to their shares. The message is a hint, since each process also
-- learns this from its next renewal. So it is enough to ask some of them: those whose leases end last, which also renew last.
local function ask_to_yield(q)
  local holders = KEYS[5]
  local stamp = next_token(q)
  local body = stamp and string.format('yield %.0f', stamp)
  for _, text in ipairs(body and redis.call('ZREVRANGE', holders, 0, PART) or {}) do
    local entry = parse(text)
    if entry then
      notify(entry, body)
    end
  end
end

-- Returns the remaining milliseconds and the label of non-exclusive holders. With permits, the time is that of the lease that
-- ends first; the label is that of the last one.
local function look_at_holders(q)
  local lock, holders = KEYS[1], KEYS[5]
  local remaining = redis.call('PTTL', lock)
  local soonest = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')
  if is_permits(q.holder) and soonest[2] and soonest[1] ~= '#' then
    remaining = math.max(0, tonumber(soonest[2]) - milliseconds(q))
  end
  local longest = redis.call('ZREVRANGE', holders, 0, 1)
  local entry = parse(longest[longest[1] == '#' and 2 or 1] or '')
  return remaining, entry and label_of(entry.token) or ''
end

-- A request that does not get the lock waits, or is refused. Returns the reply.
local function wait(q)
  local lock, holders = KEYS[1], KEYS[5]
  local has_marker = is_marker(q.holder)
  local ours = has_marker or q.holder and string.sub(q.holder, 1, 4) == 'lc1:'
  if is_other_mode(q, ours) then
    leave(q.own)
    -- The entries after it may now enter.
    if holders then
      advance(q)
    end
    return redis.error_reply('LOCKMODE this key is held or waited for in another mode')
  end
  local added = MODE ~= 'try' and join(q)
  if added == nil then
    return {0, redis.call('PTTL', lock), 0, 0}
  end
  if KIND == 's' and q.holder and not has_marker then
    -- The phase is exclusive, even if its holder took the lock without the queue.
    drop_cut()
  elseif IS_ALONE and is_shared(q.holder) and set_cut(q, added) and holders then
    ask_to_yield(q)
  end
  if has_marker and holders then
    return busy(q, added, 1, look_at_holders(q))
  end
  return busy(q, added, ours and 1 or 0, redis.call('PTTL', lock), label_of(q.holder or ''))
end

return wait(q)
