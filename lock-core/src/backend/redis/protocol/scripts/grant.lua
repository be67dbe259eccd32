-- Granting the lock: the words of an entry, the fencing tokens, and the messages that notify a process of its grant.
--
-- The words of an entry, the keys, and the state `q` are described in queue.lua.

local CHANNEL = '__lock_core__:grants:'

-- Parses an entry into its words, which are strings. Returns nothing if it is not an entry, and so was not written by a process
-- of ours.
local function parse(text)
  local channel, number, ttl, kind, token = string.match(text, '^(%S+) (%d+) (%d+) (%w+) (.+)$')
  if channel then
    return {text = text, channel = channel, number = number, ttl = ttl, kind = kind, token = token}
  end
end

-- Returns true if the value of the lock is the marker of non-exclusive holders, rather than an owner token.
local function is_marker(holder)
  return holder and string.sub(holder, 1, 4) == 'lc1+'
end

local OUT_OF_BOUNDS = 'ERR no fencing token can be issued: '
-- A fencing token is an id of the fencing clock: milliseconds, and one of this many sequence numbers in each millisecond.
local PER_MILLI = 2048
-- The largest lead of a token over the clock: an hour.
local LARGEST_LEAD = 3600000 * PER_MILLI

-- Advances the fencing clock to an id, and returns the id. If the server refuses, returns nothing and sets q.refused to the error.
-- It is not raised, because it must not stop a script after its first write, which may have removed an entry.
local function move_clock(q, id)
  local clock = KEYS[2]
  local moved = redis.pcall('XADD', clock, 'MAXLEN', '0', id, '', '')
  if type(moved) == 'string' then
    return moved
  end
  -- The second error means that the clock is at the largest possible id.
  if string.find(moved.err, 'WRONGTYPE', 1, true) or string.find(moved.err, 'exhausted', 1, true) then
    q.refused = string.format(OUT_OF_BOUNDS .. '%s is not a fencing clock, so another client must have written it. Run: DEL %s', clock,
      clock)
  else
    -- Redis 6 puts the line of the script before some errors.
    q.refused = string.gsub(moved.err, '^@user_script: %d+: %-?', '')
  end
end

-- Takes the next fencing tokens, at most `count`. Returns the first and how many. If none can be given, returns nothing, and
-- q.refused is an error that says how to correct the clock.
--
-- The first token is the next id of the clock, unless the caller knows a larger token, or the sequence number is too large.
-- In both cases, the clock is advanced. All tokens are of one millisecond, so the clock never overtakes the server's time.
local function take_tokens(q, count)
  local clock = KEYS[2]
  local id = move_clock(q, '*')
  if not id then
    return nil
  end
  local known = q.known
  local millis, sequence = string.match(id, '^(%d+)-(%d+)$')
  millis, sequence = tonumber(millis), tonumber(sequence)
  local first = millis * PER_MILLI + math.min(sequence, PER_MILLI)
  -- A token more than an hour ahead is wrong, and must not drag the clock along.
  if known > first + LARGEST_LEAD then
    q.refused = string.format(OUT_OF_BOUNDS .. 'this process knows the token %.0f, and the fencing clock of this server is more than ' ..
      'an hour behind it. If the server\'s clock was set back over a loss of data, set it right, or run: ' ..
      'XADD %s MAXLEN 0 %.0f-%.0f 0 0', known, clock, math.floor(known / PER_MILLI), known % PER_MILLI)
    return nil
  end
  first = math.max(first, known + 1)
  count = math.min(count, PER_MILLI - first % PER_MILLI)
  local last = first + count - 1
  -- Beyond 2^53, adding one gives the same number.
  if last >= 9007199254740992 then
    q.refused = string.format(OUT_OF_BOUNDS .. 'the fencing clock %s is at %s, which no token can exceed. Run: DEL %s', clock, id,
      clock)
    return nil
  end
  if last > millis * PER_MILLI + sequence or sequence >= PER_MILLI then
    -- Numbers are doubles here, exact up to 2^53, but are printed with 14 digits by default.
    if not move_clock(q, string.format('%.0f-%.0f', math.floor(last / PER_MILLI), last % PER_MILLI)) then
      return nil
    end
  end
  return first, count
end

-- Takes and returns one token, or nothing.
local function next_token(q)
  return (take_tokens(q, 1))
end

-- Publishes a message to the process of an entry. Returns whether the process received it; after an error, it counts as gone.
--
-- Any user with the right to publish can send a message, so each ends with a proof: a hash of its text and of the owner token,
-- which only the process and the server know.
local function notify(entry, body)
  local message = entry.number .. ' ' .. body .. ' ' .. redis.sha1hex(entry.token .. ' ' .. body)
  -- In a cluster, only SPUBLISH returns how many processes it reached, since PUBLISH also reaches the other nodes.
  local publish = string.sub(entry.channel, 1, 1) == '{' and 'SPUBLISH' or 'PUBLISH'
  local reached = redis.pcall(publish, CHANNEL .. entry.channel, message)
  return type(reached) == 'number' and reached > 0
end
