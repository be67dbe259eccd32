-- What acquire.lua, release.lua, renew.lua, inspect.lua and force_release.lua share. It comes before each of them, and only a short
-- path comes before it.
--
-- All of them have these keys:
--
-- KEYS[1]  the lock: a string with an expiry: the owner token of an exclusive holder, or a marker, see below.
-- KEYS[2]  the fencing clock: an empty stream, without an expiry. The ids of its entries are the fencing tokens, and the stamps.
-- KEYS[3]  the queue: a sorted set with an entry for each request that waits.
-- KEYS[4]  the beats: a sorted set of the entries that were checked lately.
-- KEYS[5]  the holders beside each other, in shared or permits mode: a sorted set of their entries.
-- KEYS[6]  the numbers of the permits that are held: a sorted set of the entries of their holders.
-- KEYS[7]  the result of the body that ran once: a string that expires when it is to be kept no longer.
-- KEYS[8]  the mark of processes that poll: the channel of the last one, with an expiry.
--
-- No script makes the name of a key: some servers refuse a key that the call does not declare. While a slot of a cluster moves, its nodes
-- refuse a call that declares a missing key beside others. Such a call is sent once more with the few keys that exist then, and leaves out
-- what needs the others: see each program.
--
-- An entry is "channel number ttl kind token". It does not change while its request lives.
--
-- `channel`  of the process, where the grant is published; with the number, the name of the entry. In a cluster it begins with
--            a tag between braces that has the slot of the lock.
-- `ttl`      in milliseconds, for the lease that it is to get.
-- `kind`     x: exclusive; o: exclusive, for a body that runs once; s: shared; a number n: permits, one of n.
-- `token`    the owner token that the lock, or the entry among the holders, is to hold.
--
-- Scores:
--
-- `queue`    the place, which is the time of joining; BAND more for all but shared requests. So there are two queues in one:
--            the shared requests stand first, and then all others.
-- `beats`    the time of the last check. The member # is there if the last phase was a shared one, and an exclusive entry is
--            queued. Its score is BAND plus the cut, see advance().
-- `holders`  the end of the lease, in milliseconds. The member # is there from the beginning: without it the set was evicted.
-- `permits`    the number of the permit.
--
-- Times are in microseconds of the server unless the line says otherwise. They are never compared with tokens and stamps.
--
-- A stamp orders a grant message and a reply to the same entry. Each takes an id of the clock, so the later one has the larger stamp.
--
-- The marker is "lc1+s:" with the fencing token of the phase and a colon, or "lc1+p:". It is no owner token, and any other
-- client finds the lock busy. Its expiry is set to the latest end of a holder's lease with each change, up or down. Holders count
-- only while the marker exists. So a script that makes one deletes what is left of earlier holders.
--
-- An entry that neither came nor was checked for two beats is passed over. A process that comes back puts it back at its place.

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
-- A fencing token is an id of the fencing clock: milliseconds and a sequence number, of which each millisecond has so many.
local PER_MILLI = 2048
-- How far a token may lie ahead of the clock: an hour.
local LARGEST_LEAD = 3600000 * PER_MILLI

-- Moves the fencing clock to an id. Returns the id; nothing if the server refuses, and the error. It is not raised: it must not stop
-- a script after its first write, since an entry may have been taken out by then.
local function move_clock(id)
  local moved = redis.pcall('XADD', KEYS[2], 'MAXLEN', '0', id, '', '')
  if type(moved) == 'string' then
    return moved
  end
  -- The second error means that the clock is at the largest id of all.
  if string.find(moved.err, 'WRONGTYPE', 1, true) or string.find(moved.err, 'exhausted', 1, true) then
    return nil, string.format(OUT_OF_BOUNDS .. '%s is no fencing clock, so another client must have written it. Run: DEL %s',
      KEYS[2], KEYS[2])
  end
  -- Redis 6 puts the line of the script before some errors.
  return nil, (string.gsub(moved.err, '^@user_script: %d+: %-?', ''))
end

-- Takes the next fencing tokens, `count` at the most; returns the first and how many. If none can be given: returns nothing, and an
-- error that says how to correct the clock.
--
-- The first token is the next id of the clock, unless the asking process knows a larger token, or the sequence number is too large.
-- Then the clock is moved on. The tokens are of one millisecond. So the clock never overtakes the server's time.
local function take_tokens(known, count)
  local id, refused = move_clock('*')
  if not id then
    return nil, refused
  end
  local millis, sequence = string.match(id, '^(%d+)-(%d+)$')
  millis, sequence = tonumber(millis), tonumber(sequence)
  local first = millis * PER_MILLI + math.min(sequence, PER_MILLI)
  -- A token that lies more than an hour ahead is wrong, and must not drag the clock along.
  if known > first + LARGEST_LEAD then
    return nil, string.format(OUT_OF_BOUNDS .. 'this process knows the token %.0f, and the fencing clock of this server is more ' ..
      'than an hour behind it. If the server\'s clock was set back over a loss of data, set it right, or run: ' ..
      'XADD %s MAXLEN 0 %.0f-%.0f 0 0', known, KEYS[2], math.floor(known / PER_MILLI), known % PER_MILLI)
  end
  first = math.max(first, known + 1)
  count = math.min(count, PER_MILLI - first % PER_MILLI)
  local last = first + count - 1
  -- Beyond 2^53 one more is the same number.
  if last >= 9007199254740992 then
    return nil, string.format(OUT_OF_BOUNDS .. 'the fencing clock %s is at %s, which no token can exceed. Run: DEL %s', KEYS[2], id,
      KEYS[2])
  end
  if last > millis * PER_MILLI + sequence or sequence >= PER_MILLI then
    -- Numbers are doubles here, exact up to 2^53, but are printed with 14 digits by default.
    id, refused = move_clock(string.format('%.0f-%.0f', math.floor(last / PER_MILLI), last % PER_MILLI))
    if not id then
      return nil, refused
    end
  end
  return first, count
end

-- Takes one token; returns it, or nothing and the error.
local function next_token(known)
  local token, refused = take_tokens(known, 1)
  return token, not token and refused or nil
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
local function notify(channel, number, token, body)
  local message = number .. ' ' .. body .. ' ' .. redis.sha1hex(token .. ' ' .. body)
  -- In a cluster only SPUBLISH tells how many processes it reached: PUBLISH reaches the other nodes, too.
  local publish = string.sub(channel, 1, 1) == '{' and 'SPUBLISH' or 'PUBLISH'
  local reached = redis.pcall(publish, CHANNEL .. channel, message)
  return type(reached) == 'number' and reached > 0
end
