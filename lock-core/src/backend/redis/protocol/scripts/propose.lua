-- Proposes a fencing token for a lock to one of several servers. The client has the lock if a majority accepts the token.
--
-- KEYS[1]  the lock: a string with the owner token, and an expiry.
-- KEYS[2]  the fencing counter: the largest fencing token accepted or given out, without an expiry.
-- KEYS[3]  the mark of processes that ask while another holder has the lock: the name of the last one, with an expiry.
-- KEYS[4]  the marker, which is lost with the server's data; see mark.lua.
-- ARGV[1]  the owner token.
-- ARGV[2]  the ttl in milliseconds.
-- ARGV[3]  the proposal: the last of the fencing tokens.
-- ARGV[4]  the number of consecutive fencing tokens.
-- ARGV[5]  the name of the caller.
-- ARGV[6]  for how many milliseconds its mark lasts; 0: it does not wait.
-- ARGV[7]  the expected beginning of the marker.
--
-- Returns {1, server's time, wanted} if accepted. Wanted 1: another process asks for the lock; 0: none does.
-- Returns {0, the larger of the counter and the server's time, server's time} if refused for its number.
-- Returns {-1, the larger of them, remaining milliseconds} if another client has the lock.
-- Remaining -1: without an expiry.
-- Returns {-2} if the marker is another one: the server may have forgotten locks.
--
-- A number far from the server's time is refused. Far above, it would drag the counter along; far below, it may be smaller than one
-- that was accepted before a loss of data.
local lock, fence, mark = KEYS[1], KEYS[2], KEYS[3]
local token, ttl, last, count = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

if string.sub(redis.call('GET', KEYS[4]) or '', 1, #ARGV[7]) ~= ARGV[7] then
  return {-2}
end

-- A script is not rolled back, so every step that can fail precedes the first write. The counter is written before the lock,
-- because a lock without a larger counter would have no fencing token.
local holder = redis.call('GET', lock)
local now = time_in_tokens()
local counter = read_counter(fence, now)
local least = math.max(now, counter)

if holder and holder ~= token then
  if ARGV[6] ~= '0' then
    redis.pcall('SET', mark, ARGV[5], 'PX', ARGV[6])
  end
  return {-1, least, redis.call('PTTL', lock)}
end

-- Beyond 2^53, adding one gives the same number.
if last - count < counter or math.abs(last - now) > WINDOW or last >= 9007199254740992 then
  return {0, least, now}
end
write_counter(fence, last)
-- If the lock is ours already, it may have a longer ttl: never shorten it.
if holder ~= token or redis.call('PTTL', lock) < ttl then
  redis.call('SET', lock, token, 'PX', ttl)
end
-- The lock is taken, so nothing may fail from here on.
local asks = redis.pcall('GET', mark)
return {1, now, type(asks) == 'string' and asks ~= ARGV[5] and 1 or 0}
