-- The data of a lock, the state of a call, and the queue with its places, beats and cut.
--
-- All programs have these keys, unless their headers say otherwise:
--
-- KEYS[1]  the lock: a string with an expiry: the owner token of an exclusive holder, or a marker, see below.
-- KEYS[2]  the fencing clock: an empty stream, without an expiry. The ids of its entries are the fencing tokens, and the stamps.
-- KEYS[3]  the queue: a sorted set with an entry for each waiting request.
-- KEYS[4]  the beats: a sorted set of the entries that were checked recently.
-- KEYS[5]  the non-exclusive holders, in shared or permits mode: a sorted set of their entries.
-- KEYS[6]  the permits: a sorted set of the same entries, with the numbers of the permits that they hold.
-- KEYS[7]  the result of the body that ran once: a string with an expiry.
-- KEYS[8]  the mark of polling processes: the channel of the last one, with an expiry. Only a polling request, and a renewal that
--          takes tokens, declare it.
--
-- No program composes the name of a key, since some servers refuse keys that the call does not declare. While a slot of a cluster
-- moves, its nodes refuse a call that declares both existing and missing keys. Such a call is sent again with only the keys that
-- exist then, and skips the steps that need the others: see each program.
--
-- An entry is "channel number ttl kind token". It does not change while its request exists.
--
-- `channel`  of the process, where the grant is published; with the number, it names the entry. In a cluster it begins with
--            a tag between braces that has the slot of the lock.
-- `ttl`      in milliseconds, for the lease to be granted.
-- `kind`     x: exclusive; o: exclusive, for a body that runs once; s: shared; a number n: permits, one of n.
-- `token`    the owner token to be put into the lock, or into the entry among the holders.
--
-- Scores:
--
-- `queue`    the place, which is the time of joining; for all but shared requests, BAND is added. So the set contains two queues:
--            first the shared requests, and then all others.
-- `beats`    the time of the last check. The member # exists if the last phase was shared, and an exclusive entry is queued. Its
--            score is BAND plus the cut, see phases.lua.
-- `holders`  the end of the lease, in milliseconds. The member # is added with the first holder, so a set without it was evicted.
-- `permits`  the number of the permit.
--
-- Times are in microseconds of the server unless the line says otherwise. They are never compared with tokens and stamps.
--
-- A stamp orders a grant message and a reply to the same entry. Each takes an id of the clock, so the later one has the larger stamp.
--
-- The marker is "lc1+s:" with the fencing token of the phase and a colon, or "lc1+p:". It is not an owner token, and to any other
-- client the lock is busy. Each change sets its expiry, up or down, to the latest end of a holder's lease. Holders count only while
-- the marker exists, so a script that creates one deletes the remains of earlier holders.
--
-- An entry that neither joined nor was checked for two beats is skipped. If its process returns, it restores the entry at its place.

-- The state of a call is one table, `q`. Each program creates it, and passes it to each function as the first argument. Its fields:
--
-- `known`      the largest fencing token that the caller knows.
-- `own`        the entry of the caller if it may enter in this call, in which case it gets a reply instead of a message.
-- `own_ttl`    how long its lease lasts, in milliseconds. The entry has the ttl of the request with which it joined the queue.
-- `place`      its place in the queue, 0 if it is not known.
-- `holder`     the value of the lock; nothing if it is free.
-- `now`        the time of this call, once microseconds() was called.
-- `waiting`    the number of queued entries.
-- `left`       the number of entries that this call may still admit or answer.
-- `unsettled`  whether holders were added, so that settle() must be called.
-- `mine`       the grant of the caller, if it is not exclusive: {fencing token, contended, permit, more}.
-- `released`   1 if the caller was a holder, and has left.
-- `refused`    the error, if no fencing token could be issued.
--
-- The keys are neither fields of `q` nor variables of the whole program: a table of twice the size costs the server a microsecond
-- per call, and so do every ten outer variables that a function uses. So each function names the keys that it uses. For the same
-- reason, a program first defines only the functions of its frequent cases, handles these, and defines the rest after that.

-- Two beats with their jitter.
local SILENT = 2200000
-- Larger than any time; twice as much is still exact in a double.
local BAND = 4500000000000000
-- BAND for commands. A number costs more, since it is formatted at each call.
local OTHERS = '4500000000000000'

local function microseconds(q)
  if not q.now then
    local time = redis.call('TIME')
    q.now = tonumber(time[1]) * 1000000 + tonumber(time[2])
  end
  return q.now
end

-- Removes an entry, whatever its place. A key of another type is not a queue, and has no entry.
local function leave(text)
  local queue = KEYS[3]
  redis.pcall('ZREM', queue, text)
end

-- Returns true if an entry neither joined nor was checked for too long.
local function is_silent(q, text, place)
  local beats = KEYS[4]
  local limit = microseconds(q) - SILENT
  if place > limit then
    return false
  end
  local beat = redis.pcall('ZSCORE', beats, text)
  return type(beat) ~= 'string' or tonumber(beat) <= limit
end

-- Deletes the cut.
local function drop_cut()
  local beats = KEYS[4]
  redis.pcall('ZREM', beats, '#')
end
