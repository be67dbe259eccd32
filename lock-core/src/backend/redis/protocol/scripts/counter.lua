-- The fencing counter of one of several servers. It precedes propose.lua and mark.lua.
--
-- Numbers are fencing tokens, which are times: 2048 for each millisecond. They are doubles here, exact up to 2^53, but are printed with
-- 14 digits by default.
--
-- A server without a counter is new, or has lost its data, perhaps without a restart that clients would notice. It may have accepted
-- any number up to the bound at its time, so that bound becomes its counter.
local PER_MILLI = 2048
-- The largest distance of a number from the server's time: a second.
local WINDOW = 1000 * PER_MILLI

local function time_in_tokens()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 * PER_MILLI + math.floor(tonumber(time[2]) * PER_MILLI / 1000)
end

local function write_counter(fence, counter)
  redis.call('SET', fence, string.format('%.0f', counter))
end

local function read_counter(fence, now)
  local counter = tonumber(redis.call('GET', fence) or '')
  if not counter then
    counter = now + WINDOW
    write_counter(fence, counter)
  end
  return counter
end

