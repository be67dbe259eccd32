-- What the scripts share. It comes before each of them, and only a short path comes before it.
--
-- All of them have these keys:
--
-- KEYS[1]  the lock: a string with an expiry: the owner token of an exclusive holder, or a marker, see below.
-- KEYS[2]  the fencing counter: the largest fencing token given out, without an expiry.
-- KEYS[3]  the queue: a sorted set with an entry for each request that waits.
-- KEYS[4]  the beats: a sorted set of the entries that were checked lately.
-- KEYS[5]  the holders beside each other, in shared or permits mode: a sorted set of their entries.
-- KEYS[6]  the seats of the holders of permits: a sorted set of their entries.
--
-- An entry is "channel number ttl kind token". It does not change while its request lives.
--
-- `channel`  of the process, where the grant is published; with the number, the name of the entry. In a cluster it begins with
--            a tag between braces that has the slot of the lock.
-- `ttl`      in milliseconds, for the lease that it is to get.
-- `kind`     x: exclusive; s: shared; a number n: permits, one of n.
-- `token`    the owner token that the lock, or the entry among the holders, is to hold.
--
-- Scores:
--
-- `queue`    the place, which is the time of joining; BAND more for all but shared requests. So there are two queues in one:
--            the shared requests stand first, and then all others.
-- `beats`    the time of the last check. The member # is there if the last phase was a shared one, and an exclusive entry is
--            queued. Its score is BAND plus the cut, see advance().
-- `holders`  the end of the lease, in milliseconds. The member # is there from the beginning: without it the set was evicted.
-- `seats`    the number of the seat.
--
-- Times are in microseconds of the server unless told otherwise.
--
-- The marker is "lc1+s:" with the fencing token of the phase and a colon, or "lc1+p:". It is no owner token, and any other
-- client finds the lock busy. Its expiry is set to the latest end of a holder's lease with each change, up or down. Holders count
-- only while the marker exists. So a script that makes one deletes what is left of earlier holders.
--
-- An entry that neither came nor was checked for two beats is passed over. A process that comes back puts it back at its place.

-- A node of a cluster that is giving its slot away, or receiving it, refuses a call that declares a missing key beside others. So a
-- call declares what mostly exists, and all six have the same slot. An exclusive request declares the first four keys. A renewal
-- beside others declares the lock and the holders, and the seats if there are any.
if KEYS[2] and not KEYS[4] then
  local front = string.sub(KEYS[2], 1, -#KEYS[1] - 9)
  for i, name in ipairs({'fence', 'waiters:', 'beats:', 'holders:', 'seats:'}) do
    KEYS[i + 1] = front .. name .. (i > 1 and KEYS[1] or '')
  end
elseif KEYS[3] and not KEYS[5] then
  KEYS[5] = (string.gsub(KEYS[3], 'waiters:', 'holders:', 1))
  KEYS[6] = (string.gsub(KEYS[3], 'waiters:', 'seats:', 1))
end

-- Two beats with their jitter.
local SILENT = 2200000
local CHANNEL = '__lock_core__:grants:'
-- More than any time, and twice as much is still exact in a double.
local BAND = 4500000000000000
-- The same for commands. A number costs more, since it is written out at each call.
local OTHERS = '4500000000000000'
-- The words of an entry: channel, number, ttl, kind and token.
local ENTRY = '^(%S+) (%d+) (%d+) (%w+) (.+)$'

local time_now
local function microseconds()
  if not time_now then
    local time = redis.call('TIME')
    time_now = tonumber(time[1]) * 1000000 + tonumber(time[2])
  end
  return time_now
end

local OUT_OF_BOUNDS = 'ERR no fencing token can be given: '

-- Takes the next fencing tokens, `count` at the most; returns the first and how many. If none can be given: returns nothing, and an
-- error that says how to correct the counter.
--
-- The last token is the server's time, unless the counter or a token that the asking process knows is ahead of it. So tokens
-- grow after a loss of data, too. Never takes so many that the counter overtakes the clock, but one at least.
local function take_tokens(known, count)
  local fence, now = KEYS[2], microseconds()
  -- A key of another type must not stop a script after its first write: an entry may have been taken out by then.
  local counter = redis.pcall('GET', fence)
  if type(counter) == 'table' then
    return nil, string.format(OUT_OF_BOUNDS .. '%s holds no counter, which another client must have written. Run: DEL %s', fence, fence)
  end
  counter = tonumber(counter or '0') or 0
  -- A token that lies more than an hour ahead of both is wrong, and must not drag the counter along.
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

-- Takes one token; returns it, or nothing and the error. If `was_held`, it does not ask for the time: the process that releases
-- the lock knows the largest token that was given out. So the counter plus one is enough, unless the counter was lost.
local function next_token(known, was_held)
  local token = was_held and redis.pcall('INCR', KEYS[2])
  if type(token) == 'number' and token > known and token < 9007199254740992 then
    return token
  end
  local first, error = take_tokens(known, 1)
  return first, not first and error or nil
end

-- Takes an entry out, wherever it stands. A key of another type is no queue, and has no entry.
local function leave(own)
  redis.pcall('ZREM', KEYS[3], own)
end

-- Whether an entry neither came nor was checked for too long.
local function is_silent(entry, place)
  local limit = microseconds() - SILENT
  if place > limit then
    return false
  end
  local beat = redis.pcall('ZSCORE', KEYS[4], entry)
  return type(beat) ~= 'string' or tonumber(beat) <= limit
end

-- Publishes a message to the process of an entry. If the message reached no process, that process is gone; an error means the same.
--
-- Any user with the right to publish could write a message. So each ends with a proof: a hash of its text and of the owner token,
-- which only the process and the server know.
local function tell(channel, number, token, body)
  local message = number .. ' ' .. body .. ' ' .. redis.sha1hex(token .. ' ' .. body)
  -- In a cluster only SPUBLISH tells how many processes it reached: PUBLISH reaches the other nodes, too.
  local publish = string.sub(channel, 1, 1) == '{' and 'SPUBLISH' or 'PUBLISH'
  local reached = redis.pcall(publish, CHANNEL .. channel, message)
  return type(reached) == 'number' and reached > 0
end
