-- Lets requests in, in all modes. It follows queue.lua. release.lua has the most frequent case itself.

-- How many are granted by one call. More of them would stop the server for milliseconds.
local PART = 64
local QUEUE_EXPIRY = '30000'

-- Takes out holders with a lease that has ended, and sets the marker's expiry to the latest end of the others. Returns the marker;
-- nothing if it was deleted, since no holder is left.
--
-- `ttl`  if there: the ttl of a request, in milliseconds. A marker that has lost its expiry, and its holders, gets this one.
local function settle(marker, ttl)
  local lock, holders, permits = KEYS[1], KEYS[5], KEYS[6]
  local now_ms = math.floor(microseconds() / 1000)
  local has_permits = string.sub(marker, 5, 5) == 'p'
  if has_permits then
    local over = redis.call('ZRANGEBYSCORE', holders, '-inf', now_ms)
    if over[1] then
      redis.call('ZREM', holders, unpack(over))
      redis.call('ZREM', permits, unpack(over))
    end
  else
    redis.call('ZREMRANGEBYSCORE', holders, '-inf', now_ms)
  end
  local last = redis.call('ZREVRANGE', holders, 0, 1, 'WITHSCORES')
  if last[1] ~= '#' then
    -- The set was evicted: holders that are not in it may count on the marker, so the marker's expiry is never shortened any more.
    local left = redis.call('PTTL', lock)
    if last[1] then
      if left < tonumber(last[2]) - now_ms then
        redis.call('PEXPIREAT', lock, last[2])
      end
      -- The first one to enter since then has made the set, without an expiry.
      redis.call('PEXPIREAT', holders, last[2])
    elseif left == -1 and ttl then
      -- Another client removed the expiry, and no renewal has set it again since then: the holders have gone, and their set has
      -- expired. If it was evicted, they have gone after their ttl at the latest, which is usually the ttl of this request, too.
      redis.call('PEXPIRE', lock, ttl)
    end
    return marker
  end
  if not last[3] then
    redis.call('DEL', lock, holders, permits)
    return nil
  end
  redis.call('PEXPIREAT', lock, last[4])
  redis.call('PEXPIREAT', holders, last[4])
  if has_permits then
    redis.call('PEXPIREAT', permits, last[4])
  end
  return marker
end

-- Lets the entries of the queue in that may enter now, in any mode. Returns three values. The first is what the lock holds then,
-- nothing if it is free. The second is what the asking process got, if it got in: {fencing token, contended, permit, more}.
-- The third is the error, if a fencing token could not be given.
--
-- `known`     the largest fencing token that the asking process knows.
-- `own`       its entry, if it has one: it enters without a message. An exclusive one is only taken out, and the lock is left free
--             for it.
-- `holder`    what the lock holds. A marker was settled before, unless the queue is empty.
-- `kind`      if there: the mode in which `own` may enter without having been in the queue.
-- `own_ttl`   how long the lease of `own` lasts, in milliseconds: its entry has the ttl of the request that joined the queue.
--
-- Phases are fair. Exclusive phases alternate with shared ones while both kinds wait. A shared phase has a cut, which is the time
-- of its beginning, or that of the first exclusive entry that came later. Shared entries placed before the cut belong to the phase,
-- also if all its first holders have left before they were granted. Behind them an exclusive entry comes first. The cut is
-- in the beats and not in the marker, since it has to outlive the marker. The cut expires with the beats, when no entry was checked
-- for so long that all of them are silent.
--
-- An entry for a body that is to run once is exclusive. While there is a result, it is answered instead: a message tells its process to
-- ask for the result. A part of them is answered by one call, and each of their requests calls for the next part.
--
-- Taking an entry out is the first write. A server that is out of memory permits it, and then the other writes of the same call.
local function advance(known, own, holder, kind, own_ttl)
  local lock, queue, beats, holders, permits = KEYS[1], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
  local waiting = redis.pcall('ZCARD', queue)
  if type(waiting) ~= 'number' then
    -- A key of another type under the queue's name is no queue, and must not prevent a release. Any other error is raised.
    waiting = string.find(waiting.err, 'WRONGTYPE', 1, true) and 0 or redis.call('ZCARD', queue)
  end
  holder = holder or nil
  if holder and string.sub(holder, 1, 4) ~= 'lc1+' then
    return holder
  end
  if waiting == 0 and not kind then
    -- Without waiters, no cut is needed.
    redis.pcall('ZREM', beats, '#')
    return holder
  end
  local now = microseconds()
  local now_ms = math.floor(now / 1000)
  local left, mine, refused, unsettled = PART, nil, nil, false

  -- Returns the first exclusive or permits entry. Takes out the silent ones before it, and what was not written by us.
  local function first_other()
    while true do
      local found = redis.call('ZRANGEBYSCORE', queue, OTHERS, '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
      local entry = found[1]
      local _, _, _, kind_there = string.match(entry or '', ENTRY)
      local is_other = kind_there == 'x' or kind_there == 'o' or tonumber(kind_there)
      if not entry or entry == own or is_other and not is_silent(entry, tonumber(found[2]) - BAND) then
        return entry
      end
      redis.call('ZREM', queue, entry)
    end
  end

  -- Lets shared entries in that were taken out of the queue. Returns whether a fencing token could be given. `more`: others wait
  -- behind the last of them.
  local function enter_shared(entries, contended, more)
    local fencing = holder and string.match(holder, '(%d+):$')
    local adds, latest, stamp = {}, 0, nil
    for i, entry in ipairs(entries) do
      local channel, number, ttl, _, token = string.match(entry, ENTRY)
      if not fencing or not stamp and entry ~= own then
        -- Later entries of a phase have its fencing token, and a stamp of their own.
        stamp, refused = next_token(known)
        if not stamp then
          return false
        end
        fencing = fencing or string.format('%.0f', stamp)
      end
      local is_last = more and left == 1 and 1 or 0
      local is_reached = true
      if entry == own then
        mine = {tonumber(fencing), contended, 0, is_last}
      else
        local body = string.format('%s %.0f %d 0 %d', fencing, stamp, contended, is_last)
        is_reached = notify(channel, number, token, body)
      end
      if is_reached then
        local ends = now_ms + (entry == own and own_ttl or tonumber(ttl))
        adds[#adds + 1], adds[#adds + 2] = ends, entry
        latest = math.max(latest, ends)
        left = left - 1
      end
    end
    if not adds[1] then
      return true
    end
    if holder then
      -- A copy of the acquire may have entered already: never shorten its lease.
      redis.call('ZADD', holders, 'GT', unpack(adds))
      unsettled = true
    else
      holder = 'lc1+s:' .. fencing .. ':'
      redis.call('DEL', holders, permits)
      redis.call('SET', lock, holder, 'PXAT', latest)
      redis.call('ZADD', holders, '9007199254740991', '#', unpack(adds))
      redis.call('PEXPIREAT', holders, latest)
    end
    return true
  end

  -- Takes shared entries out of the queue, and lets those in that are not silent.
  local function admit(found, contended)
    local count = #found / 2
    local more = count > left
    local all, alive = {}, {}
    for i = 1, math.min(count, left) do
      local entry = found[2 * i - 1]
      all[i] = entry
      -- A member that is no shared entry was not written by us, and is passed over.
      local _, _, _, kind_there = string.match(entry, ENTRY)
      if entry == own or kind_there == 's' and not is_silent(entry, tonumber(found[2 * i])) then
        alive[#alive + 1] = entry
      end
    end
    redis.call('ZREM', queue, unpack(all))
    waiting = waiting - #all
    return enter_shared(alive, contended, more)
  end

  -- Whether a request for one of `n` permits may enter: fewer than n are held. Then one of the first n permits is free, even if
  -- others have another n. If the permits or the holders were evicted, their numbers differ, and nothing enters until the marker
  -- has ended.
  local function has_room(n)
    local counted = redis.call('ZCARD', permits)
    return counted < n and redis.call('ZCARD', holders) == counted + 1
  end

  -- The lowest permit that is free.
  local function lowest_permit()
    local low, high = 0, redis.call('ZCARD', permits)
    if high == 0 or redis.call('ZCOUNT', permits, 0, high - 1) == high then
      return high
    end
    -- A permit below the number of taken permits is free.
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

  -- Lets a permits entry in that was taken out of the queue. Returns whether a fencing token could be given.
  local function enter_permits(entry)
    local channel, number, ttl, _, token = string.match(entry, ENTRY)
    local fencing
    fencing, refused = next_token(known)
    if not fencing then
      return false
    end
    if not holder then
      redis.call('DEL', holders, permits)
    end
    local permit = lowest_permit()
    local contended = waiting > 0 and 1 or 0
    local more = left == 1 and contended or 0
    if entry == own then
      mine = {fencing, contended, permit, more}
    elseif not notify(channel, number, token, string.format('%.0f %.0f %d %d %d', fencing, fencing, contended, permit, more)) then
      return true
    end
    left = left - 1
    local ends = now_ms + (entry == own and own_ttl or tonumber(ttl))
    if not holder then
      holder = 'lc1+p:'
      redis.call('SET', lock, holder, 'PXAT', ends)
      redis.call('ZADD', holders, '9007199254740991', '#')
      redis.pcall('ZREM', beats, '#')
    end
    redis.call('ZADD', holders, ends, entry)
    redis.call('ZADD', permits, permit, entry)
    unsettled = true
    return true
  end

  -- Grants the free lock to an exclusive entry that was taken out of the queue. Returns false if its process is gone, or if the entry
  -- was answered: then the next entry is tried.
  local function enter_exclusive(entry)
    local channel, number, ttl, kind_there, token = string.match(entry, ENTRY)
    if entry ~= own then
      if kind_there == 'o' and redis.call('EXISTS', KEYS[7]) == 1 then
        notify(channel, number, token, string.format('done %.0f', now))
        left = left - 1
        return false
      end
      local fencing
      fencing, refused = next_token(known)
      if not fencing then
        return true
      end
      if not notify(channel, number, token, string.format('%.0f', fencing)) then
        return false
      end
      redis.call('SET', lock, token, 'PX', ttl)
      holder = token
    end
    redis.pcall('ZREM', beats, '#')
    return true
  end

  -- Bounded by the queue: each round but the last takes an entry out.
  while waiting > 0 and left > 0 do
    local other = first_other()
    local _, _, _, other_kind = string.match(other or '', ENTRY)
    local n = tonumber(other_kind)
    local is_permits = holder and string.sub(holder, 5, 5) == 'p'
    local found, cut = {}, nil
    if not is_permits then
      cut = redis.pcall('ZSCORE', beats, '#')
      cut = type(cut) == 'string' and tonumber(cut) - BAND
      if not other and cut then
        redis.pcall('ZREM', beats, '#')
      end
      if other and not cut and holder then
        -- The cut was evicted with the beats: then nothing more enters the phase.
        break
      end
      local limit = string.format('(%.0f', other and cut or BAND)
      found = redis.call('ZRANGEBYSCORE', queue, '-inf', limit, 'WITHSCORES', 'LIMIT', 0, left + 1)
    end
    if found[1] then
      local was_free = not holder
      if not admit(found, other and 1 or 0) then
        break
      end
      if other and not cut and was_free and holder then
        -- The cut is now: the rest of a batch that is larger than a part is placed before it.
        redis.pcall('ZADD', beats, BAND + now, '#')
        redis.pcall('PEXPIRE', beats, SILENT / 1000)
      end
    elseif not holder and other or is_permits and n and has_room(n) then
      leave(other)
      waiting = redis.call('ZCARD', queue)
      if n then
        if not enter_permits(other) then
          break
        end
      elseif enter_exclusive(other) then
        return holder, nil, refused
      end
    else
      break
    end
    waiting = redis.call('ZCARD', queue)
  end

  if waiting == 0 then
    redis.pcall('ZREM', beats, '#')
  end
  -- A newcomer enters directly only if none waits.
  if kind and not mine and not refused and waiting == 0 then
    local n = tonumber(kind)
    if not n and (not holder or string.sub(holder, 5, 5) == 's') then
      enter_shared({own}, 0, false)
    elseif n and (not holder or string.sub(holder, 5, 5) == 'p' and has_room(n)) then
      enter_permits(own)
    end
  end
  if unsettled then
    holder = settle(holder)
  end
  return holder, mine, refused
end

-- Whether requests wait that a holder beside others has to know of: exclusive ones if it is shared, any if it has a permit.
-- A key of another type is no queue. While its slot moves, the queue may be at another node, and then this is not known.
local function is_contended(marker)
  local waiting
  if string.sub(marker, 5, 5) == 's' then
    waiting = redis.pcall('ZCOUNT', KEYS[3], OTHERS, '+inf')
  else
    waiting = redis.pcall('EXISTS', KEYS[3])
  end
  return type(waiting) == 'number' and waiting > 0 and 1 or 0
end
