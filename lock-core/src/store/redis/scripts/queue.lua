-- What the scripts share. It stands before each of them.
--
-- All of them have these keys:
--
-- KEYS[1]  the lock: a string that holds the owner token, with an expiry
-- KEYS[2]  the fencing counter: the largest fencing token given out, without an expiry
-- KEYS[3]  the queue: a sorted set with an entry for each process that waits
-- KEYS[4]  the beats: a sorted set of the entries that were checked lately
--
-- An entry is "channel number ttl token". Its score in the queue is its place: the time at which it came. Its score in the beats
-- is the time of its last check. Both are in microseconds of the server.
--
-- channel  of the process, where the grant is published; with the number, the name of the entry. In a cluster it begins with
--          a tag between braces that has the slot of the lock
-- ttl      in milliseconds, for the lease that it is to get
-- token    the owner token that the lock is to hold
--
-- An entry that neither came nor was checked for two beats is passed over. Its process puts it back at its place if it comes back.

-- Two beats with their jitter.
local SILENT = 2200000
local QUEUE_EXPIRY = 30000
local CHANNEL = '__lock_core__:grants:'

local function microseconds()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local OUT_OF_BOUNDS = 'ERR no fencing token can be given: '

-- Takes the next fencing tokens, `count` at the most; returns the first and how many. Or nothing, and the error, with the way out.
-- `now` is the time, if it was asked for already.
--
-- The last one is the server's time, unless the counter or what the asking process knows is ahead of it: so tokens grow
-- after a loss of data, too. Never takes so many that the counter overtakes the clock, but one at least.
local function take_tokens(known, count, now)
  local fence = KEYS[2]
  now = now or microseconds()
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

-- The same for a lock that its last holder passes on, without asking for the time: who held it last knows the largest token
-- that was given out for it, so one more is enough, unless the counter was lost. Nobody else knows it.
local function next_token(known, was_held, now)
  local token = was_held and redis.pcall('INCR', KEYS[2])
  if type(token) == 'number' and token > known and token < 9007199254740992 then
    return token
  end
  return (take_tokens(known, 1, now))
end

-- Takes the first entry out: returns it and its place. A key of another type under the queue's name is no queue: it keeps no lock
-- from being let go.
local function pop()
  local popped = redis.pcall('ZPOPMIN', KEYS[3])
  if popped.err and not string.find(popped.err, 'WRONGTYPE', 1, true) then
    -- Any other error is one.
    return redis.call('ZPOPMIN', KEYS[3])
  end
  return popped
end

-- Whether the process of an entry was not heard of for too long.
local function is_silent(entry, place, now)
  if place > now - SILENT then
    return false
  end
  local beat = redis.pcall('ZSCORE', KEYS[4], entry)
  return type(beat) ~= 'string' or tonumber(beat) <= now - SILENT
end

-- Gives the lock, which must be free, to the first waiter that is alive. Returns the token that holds it then; nothing, if
-- nobody waits. The entry `own` is that of the asking process: it is taken out, and nobody else is given the lock.
--
-- `first` is what was taken out before, the first entry; `was_held` says that the asking process held the lock until now.
--
-- Taking an entry out is the first write, so that a server that is out of memory lets the others pass.
local function grant_next(known, own, first, was_held)
  local now
  -- Bounded by the queue: each round takes one entry out.
  while true do
    local popped = first or pop()
    local entry = popped[1]
    first = nil
    if not entry or entry == own then
      return nil
    end
    now = now or microseconds()
    -- What is no entry was not written by us, and is passed over too.
    local channel, number, ttl, token = string.match(entry, '^(%S+) (%d+) (%d+) (.+)$')
    if token and not is_silent(entry, tonumber(popped[2]), now) then
      local fencing = next_token(known, was_held, now)
      if not fencing then
        return nil
      end
      -- A message that reached nobody means that the process is gone. An error counts as that.
      --
      -- Any user who may publish could write a grant. So it ends with a proof: a hash of the owner token, which only the
      -- waiter and the server know, and of the fencing token.
      fencing = string.format('%.0f', fencing)
      local message = number .. ' ' .. fencing .. ' ' .. redis.sha1hex(token .. ' ' .. fencing)
      -- In a cluster only a sharded message tells whom it reached: others reach the nodes of the cluster, too.
      local publish = string.sub(channel, 1, 1) == '{' and 'SPUBLISH' or 'PUBLISH'
      local reached = redis.pcall(publish, CHANNEL .. channel, message)
      if type(reached) == 'number' and reached > 0 then
        redis.call('SET', KEYS[1], token, 'PX', ttl)
        return token
      end
    end
  end
end

-- Takes an entry out, wherever it stands. There is none in what is no queue.
local function leave(own)
  redis.pcall('ZREM', KEYS[3], own)
end
