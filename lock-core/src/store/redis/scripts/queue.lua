-- What the scripts share. It stands before each of them.
--
-- All of them have these keys:
--
-- KEYS[1]  the lock: a string with an expiry: the owner token of an exclusive holder, or a marker, see below
-- KEYS[2]  the fencing counter: the largest fencing token given out, without an expiry
-- KEYS[3]  the queue: a sorted set with an entry for each request that waits
-- KEYS[4]  the beats: a sorted set of the entries that were checked lately
-- KEYS[5]  the holders beside each other, in shared or permits mode: a sorted set of their entries
-- KEYS[6]  the seats of the holders of permits: a sorted set of their entries
--
-- An entry is "channel number ttl kind token". It does not change while its request lives.
--
-- channel  of the process, where the grant is published; with the number, the name of the entry. In a cluster it begins with
--          a tag between braces that has the slot of the lock
-- ttl      in milliseconds, for the lease that it is to get
-- kind     x: exclusive; s: shared; a number n: permits, one of n
-- token    the owner token that the lock, or the entry among the holders, is to hold
--
-- Scores:
-- queue    the place, which is the time of joining; BAND more for all but shared requests. So there are two queues in one: the
--          shared requests stand first, and then all others
-- beats    the time of the last check. The member # is there if the last phase was a shared one, and an exclusive entry is
--          queued: its score is BAND and the cut, see advance()
-- holders  the end of the lease, in milliseconds. The member # is there from the beginning: without it the set was evicted
-- seats    the number of the seat
-- Times are in microseconds of the server unless told otherwise.
--
-- The marker is "lc1+s:" with the fencing token of the phase and a colon, or "lc1+p:". It is no owner token, and any other
-- client finds the lock busy. Its expiry is set to the latest end of a holder's lease with each change, up or down. Holders count
-- only while it stands. So a script that makes one deletes what is left of earlier holders.
--
-- An entry that neither came nor was checked for two beats is passed over. Its process puts it back at its place if it comes back.

-- Two beats with their jitter.
local SILENT = 2200000
local QUEUE_EXPIRY = 30000
local CHANNEL = '__lock_core__:grants:'
-- More than any time, and twice as much is still exact in a double.
local BAND = 4500000000000000
-- How many are granted by one call. More of them would stop the server for milliseconds.
local PART = 64
local LOCKMODE = 'LOCKMODE this key is held or waited for in another mode'

local time_now
local function microseconds()
  if not time_now then
    local time = redis.call('TIME')
    time_now = tonumber(time[1]) * 1000000 + tonumber(time[2])
  end
  return time_now
end

local OUT_OF_BOUNDS = 'ERR no fencing token can be given: '

-- Takes the next fencing tokens, `count` at the most; returns the first and how many. Or nothing, and the error, with the way out.
--
-- The last one is the server's time, unless the counter or what the asking process knows is ahead of it: so tokens grow
-- after a loss of data, too. Never takes so many that the counter overtakes the clock, but one at least.
local function take_tokens(known, count)
  local fence, now = KEYS[2], microseconds()
  local counter = tonumber(redis.call('GET', fence) or '0') or 0
  -- A process whose knowledge lies an hour ahead of both is mad, and must not drag everybody into the future.
  if known > math.max(now, counter) + 3600000000 then
    return nil, string.format(OUT_OF_BOUNDS .. 'this process knows the token %.0f, and the clock and the counter of this server ' ..
      'are more than an hour behind it. If the clock was set back over a loss of data, set it right, or run: SET %s %.0f',
      known, fence, known)
  end
  counter = math.max(counter, known)
  count = math.max(1, math.min(count, now - counter))
  local last = math.max(now, counter + count)
  -- Beyond 2^53 one more is the same number.
  if not (last > counter and last < 9007199254740992) then
    return nil, string.format(OUT_OF_BOUNDS .. 'the counter %s is at %.0f, which no token can exceed. Set it to the largest token ' ..
      'that was given out', fence, counter)
  end
  -- Numbers are doubles here, exact up to 2^53, but are printed with 14 digits unless told otherwise.
  redis.call('SET', fence, string.format('%.0f', last))
  return last - count + 1, count
end

-- One, or nothing and the error. The same for a lock that its last holder passes on, without asking for the time: who held it last knows the largest token
-- that was given out for it, so one more is enough, unless the counter was lost. Nobody else knows it.
local function next_token(known, was_held)
  local token = was_held and redis.pcall('INCR', KEYS[2])
  if type(token) == 'number' and token > known and token < 9007199254740992 then
    return token
  end
  local first, error = take_tokens(known, 1)
  return first, not first and error or nil
end

-- Takes the first entry out: returns it and its score. A key of another type under the queue's name is no queue: it keeps no lock
-- from being let go.
local function pop()
  local popped = redis.pcall('ZPOPMIN', KEYS[3])
  if popped.err and not string.find(popped.err, 'WRONGTYPE', 1, true) then
    -- Any other error is one.
    return redis.call('ZPOPMIN', KEYS[3])
  end
  return popped
end

-- Takes an entry out, wherever it stands. There is none in what is no queue.
local function leave(own)
  redis.pcall('ZREM', KEYS[3], own)
end

-- Returns channel, number, ttl, kind and token; nothing if it is no entry of ours.
local function parse(entry)
  return string.match(entry, '^(%S+) (%d+) (%d+) (%w+) (.+)$')
end

-- Whether the process of an entry was not heard of for too long.
local function is_silent(entry, place)
  local limit = microseconds() - SILENT
  if place > limit then
    return false
  end
  local beat = redis.pcall('ZSCORE', KEYS[4], entry)
  return type(beat) ~= 'string' or tonumber(beat) <= limit
end

-- Publishes a message to the process of an entry. A message that reached no process means that it is gone; so does an error.
--
-- Any user who may publish could write one. So it ends with a proof: a hash of the owner token, which only the process and
-- the server know, and of what it says.
local function tell(channel, number, token, body)
  local message = number .. ' ' .. body .. ' ' .. redis.sha1hex(token .. ' ' .. body)
  -- In a cluster only a sharded message tells whom it reached: others reach the nodes of the cluster, too.
  local publish = string.sub(channel, 1, 1) == '{' and 'SPUBLISH' or 'PUBLISH'
  local reached = redis.pcall(publish, CHANNEL .. channel, message)
  return type(reached) == 'number' and reached > 0
end

-- Takes out holders whose lease has ended, and sets the marker's expiry to the latest end of the others. Returns the marker; nothing
-- if it was deleted, since no holder is left.
local function settle(marker)
  local lock, holders, seats = KEYS[1], KEYS[5], KEYS[6]
  local now_ms = math.floor(microseconds() / 1000)
  local has_seats = string.sub(marker, 5, 5) == 'p'
  if has_seats then
    local over = redis.call('ZRANGEBYSCORE', holders, '-inf', now_ms)
    if over[1] then
      redis.call('ZREM', holders, unpack(over))
      redis.call('ZREM', seats, unpack(over))
    end
  else
    redis.call('ZREMRANGEBYSCORE', holders, '-inf', now_ms)
  end
  local last = redis.call('ZREVRANGE', holders, 0, 1, 'WITHSCORES')
  if last[1] ~= '#' then
    -- The set was evicted: holders that are not in it may count on the marker, which is never shortened any more.
    if last[1] and redis.call('PTTL', lock) < tonumber(last[2]) - now_ms then
      redis.call('PEXPIREAT', lock, last[2])
    end
    return marker
  end
  if not last[3] then
    redis.call('DEL', lock, holders, seats)
    return nil
  end
  redis.call('PEXPIREAT', lock, last[4])
  redis.call('PEXPIREAT', holders, last[4])
  if has_seats then
    redis.call('PEXPIREAT', seats, last[4])
  end
  return marker
end

-- Whether a request for one of `n` permits may enter: fewer than n are held. Then one of the first n seats is free, whatever the n
-- of the others. If the seats or the holders were evicted, their numbers differ, and nothing enters until the marker has ended.
local function has_room(n)
  local seated = redis.call('ZCARD', KEYS[6])
  return seated < n and redis.call('ZCARD', KEYS[5]) == seated + 1
end

-- The lowest seat that is free.
local function lowest_seat()
  local seats = KEYS[6]
  local low, high = 0, redis.call('ZCARD', seats)
  if high == 0 or redis.call('ZCOUNT', seats, 0, high - 1) == high then
    return high
  end
  -- One below the number of seats that are taken is free.
  high = high - 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if redis.call('ZCOUNT', seats, 0, middle) == middle + 1 then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- Lets those of the queue in that may enter now, in any mode. Returns what the lock holds then, nothing if it is free; and
-- what the asking process got, if it got in: {fencing token, stamp, contended, seat, more}. Or nothing twice, and the error, if no
-- fencing token can be given.
--
-- known     the largest fencing token that the asking process knows
-- own       its entry, if it has one: it enters without a message. Of an exclusive one, only the entry is taken out, and the lock
--           left free for it
-- holder    what the lock holds; a marker only behind settle()
-- was_held  the asking process held the lock until now, exclusively
-- kind      if there: `own` may enter without having been in the queue, in this mode
--
-- Phases are fair. Exclusive phases alternate with shared ones while both kinds wait. A shared phase has a cut, which is the time
-- of its beginning, or that of the first exclusive entry that came later. Shared entries placed before the cut belong to the phase,
-- also if all its first holders have left before they were granted. Behind them an exclusive entry comes first. The cut is
-- in the beats and not in the marker, since it has to outlive that. It expires with the beats only when no exclusive entry
-- was checked for so long that all of them are silent.
--
-- Taking entries out is the first write, so that a server that is out of memory lets the others pass.
local function advance(known, own, holder, was_held, kind)
  local lock, queue, beats, holders, seats = KEYS[1], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
  local waiting = redis.pcall('ZCARD', queue)
  -- A key of another type under the queue's name is no queue.
  if type(waiting) ~= 'number' then
    waiting = 0
  end
  holder = holder or nil
  if holder and string.sub(holder, 1, 4) ~= 'lc1+' then
    return holder
  end
  if waiting == 0 and not kind then
    if holder then
      redis.pcall('ZREM', beats, '#')
    end
    return holder
  end
  local now = microseconds()
  local now_ms = math.floor(now / 1000)
  local left, mine, refused, unsettled = PART, nil, nil, false

  -- The first exclusive or permits entry. Silent ones before it go.
  local function first_other()
    while true do
      local found = redis.call('ZRANGEBYSCORE', queue, BAND, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
      local entry = found[1]
      if not entry or entry == own or parse(entry) and not is_silent(entry, tonumber(found[2]) - BAND) then
        return entry
      end
      redis.call('ZREM', queue, entry)
    end
  end

  -- Lets shared entries in, which are out of the queue. Returns whether a fencing token could be given. `more`: others wait behind
  -- the last of them.
  local function enter_shared(entries, contended, more)
    local fencing = holder and string.match(holder, '(%d+):$')
    local adds, latest = {}, 0
    for i, entry in ipairs(entries) do
      local channel, number, ttl, _, token = parse(entry)
      if not fencing then
        fencing, refused = next_token(known, was_held)
        if not fencing then
          return false
        end
        fencing = string.format('%.0f', fencing)
      end
      local is_last = more and left == 1 and 1 or 0
      local is_reached = true
      if entry == own then
        mine = {tonumber(fencing), now, contended, 0, is_last}
      else
        local body = string.format('%s %.0f %d 0 %d', fencing, now, contended, is_last)
        is_reached = tell(channel, number, token, body)
      end
      if is_reached then
        local ends = now_ms + tonumber(ttl)
        adds[#adds + 1], adds[#adds + 2] = ends, entry
        latest = math.max(latest, ends)
        left = left - 1
      end
    end
    if not adds[1] then
      return true
    end
    if holder then
      -- A copy of an acquire may be a holder already: never shorten.
      redis.call('ZADD', holders, 'GT', unpack(adds))
      unsettled = true
    else
      holder = 'lc1+s:' .. fencing .. ':'
      redis.call('DEL', holders, seats)
      redis.call('SET', lock, holder, 'PXAT', latest)
      redis.call('ZADD', holders, '9007199254740991', '#', unpack(adds))
      redis.call('PEXPIREAT', holders, latest)
      if contended == 0 then
        -- Whatever cut there was is one of the past.
        redis.pcall('ZREM', beats, '#')
      end
    end
    return true
  end

  -- Takes shared entries out of the queue, and lets those in that are not silent.
  local function admit(found, contended)
    local count = #found / 2
    local more = count > left
    local all, alive = {}, {}
    for i = 1, math.min(count, left) do
      all[i] = found[2 * i - 1]
    end
    local known_beats = redis.pcall('ZMSCORE', beats, unpack(all))
    for i, entry in ipairs(all) do
      local beat = tonumber(known_beats[i] or 0) or 0
      local heard = math.max(tonumber(found[2 * i]), beat)
      if entry == own or parse(entry) and heard > now - SILENT then
        alive[#alive + 1] = entry
      end
    end
    redis.call('ZREM', queue, unpack(all))
    waiting = waiting - #all
    return enter_shared(alive, contended, more)
  end

  -- Lets a permits entry in, which is out of the queue. Returns whether a fencing token could be given.
  local function enter_permits(entry)
    local channel, number, ttl, _, token = parse(entry)
    local fencing
    fencing, refused = next_token(known, was_held)
    if not fencing then
      return false
    end
    if not holder then
      redis.call('DEL', holders, seats)
    end
    local seat = lowest_seat()
    local contended = waiting > 0 and 1 or 0
    local more = left == 1 and contended or 0
    if entry == own then
      mine = {fencing, fencing, contended, seat, more}
    elseif not tell(channel, number, token, string.format('%.0f %.0f %d %d %d', fencing, fencing, contended, seat, more)) then
      return true
    end
    left = left - 1
    local ends = now_ms + tonumber(ttl)
    if not holder then
      holder = 'lc1+p:'
      redis.call('SET', lock, holder, 'PXAT', ends)
      redis.call('ZADD', holders, '9007199254740991', '#')
      redis.pcall('ZREM', beats, '#')
    end
    redis.call('ZADD', holders, ends, entry)
    redis.call('ZADD', seats, seat, entry)
    unsettled = true
    return true
  end

  -- Gives the lock, which is free, to an exclusive entry, which is out of the queue. Returns whether the lock has its holder.
  local function enter_exclusive(entry)
    local channel, number, ttl, _, token = parse(entry)
    if entry ~= own then
      local fencing
      fencing, refused = next_token(known, was_held)
      if not fencing then
        return true
      end
      if not tell(channel, number, token, string.format('%.0f', fencing)) then
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
    local _, _, _, other_kind = parse(other or '')
    local n = tonumber(other_kind)
    if holder and string.sub(holder, 5, 5) == 'p' then
      if not n or not has_room(n) then
        break
      end
      leave(other)
      waiting = redis.call('ZCARD', queue)
      if not enter_permits(other) then
        break
      end
    else
      local cut = redis.pcall('ZSCORE', beats, '#')
      cut = type(cut) == 'string' and tonumber(cut) - BAND
      if not other and cut then
        redis.pcall('ZREM', beats, '#')
      end
      if other and not cut and holder then
        -- It was evicted with the beats: then the phase is not to go on.
        break
      end
      local limit = string.format('(%.0f', other and cut or BAND)
      local found = redis.call('ZRANGEBYSCORE', queue, '-inf', limit, 'WITHSCORES', 'LIMIT', 0, left + 1)
      if found[1] then
        local was_free = not holder
        if not admit(found, other and 1 or 0) then
          break
        end
        if other and not cut and was_free and holder then
          -- The rest of a batch, if it is larger than a part, is placed before now.
          redis.pcall('ZADD', beats, BAND + now, '#')
          redis.pcall('PEXPIRE', beats, SILENT / 1000)
        end
      elseif holder or not other then
        break
      else
        leave(other)
        if n then
          waiting = redis.call('ZCARD', queue)
          if not enter_permits(other) then
            break
          end
        elseif enter_exclusive(other) then
          return holder, nil, refused
        end
      end
      waiting = redis.call('ZCARD', queue)
    end
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

-- Gives the lock, which its exclusive holder lets go, to those who wait. Returns what the lock holds then; nothing, if it is free.
--
-- `first` is what was taken out before, the first entry; `was_held` says that the asking process held the lock until now.
--
-- This is the short way of advance(): after an exclusive phase the first entry of the queue is the next one in any case.
local function hand_over(known, first, was_held)
  -- Bounded by the queue: each round takes one entry out.
  while true do
    local popped = first or pop()
    local entry = popped[1]
    first = nil
    if not entry then
      return nil
    end
    -- What is no entry was not written by us, and is passed over.
    local channel, number, ttl, kind, token = parse(entry)
    if token and kind ~= 'x' then
      redis.call('ZADD', KEYS[3], popped[2], entry)
      redis.pcall('ZREM', KEYS[4], '#')
      return (advance(known, nil, nil, was_held))
    end
    if token and not is_silent(entry, tonumber(popped[2]) - BAND) then
      local fencing = next_token(known, was_held)
      if not fencing then
        return nil
      end
      if tell(channel, number, token, string.format('%.0f', fencing)) then
        redis.call('SET', KEYS[1], token, 'PX', ttl)
        return token
      end
    end
  end
end

-- The label of a holder; empty if it has none.
local function label_of(holder)
  if string.sub(holder, 1, 4) ~= 'lc1+' then
    return string.match(holder, '^lc[01]:(.*):') or ''
  end
  for _, entry in ipairs(redis.call('ZREVRANGE', KEYS[5], 0, 1)) do
    local _, _, _, _, token = parse(entry)
    if token then
      return string.match(token, '^lc[01]:(.*):') or ''
    end
  end
  return ''
end

-- Whether others wait that a holder beside others is to know of: an exclusive request for a shared one, any for one of permits.
local function is_contended(marker)
  if string.sub(marker, 5, 5) == 's' then
    return redis.call('ZCOUNT', KEYS[3], BAND, '+inf') > 0 and 1 or 0
  end
  return redis.call('EXISTS', KEYS[3])
end
