-- Tells which of the commands that the other scripts call this user may not call.
--
-- ARGV[1]  a key of the reserved name space that nobody uses; no key is declared, so that it does not matter in a cluster
--          which server is asked
-- ARGV[2]  the channel of the asking process; empty if this is not the connection by which grants are found out
--
-- Returns their names; none if all may be called.
--
-- A server before Redis 7 tells it only by doing it. What is written is gone again before anybody sees it, and so that it
-- is, deleting comes first.
local key, channel = ARGV[1], ARGV[2]
local missing = {}

local function may(...)
  if redis.acl_check_cmd then
    return redis.acl_check_cmd(...)
  end
  local answer = redis.pcall(...)
  local refusal = type(answer) == 'table' and answer.err or ''
  return not string.find(refusal, 'user executing the script', 1, true)
end

for _, call in ipairs({
  {'DEL', key}, {'PSETEX', key, 1000, 0}, {'SET', key, 0}, {'GET', key}, {'INCR', key}, {'EXISTS', key},
  {'PTTL', key}, {'PEXPIRE', key, 1000}, {'ZADD', key, 0, ''}, {'ZRANGE', key, 0, 0}, {'ZREM', key, ''}, {'ZCARD', key},
  {'ZPOPMIN', key}, {'ZSCORE', key, ''}, {'ZREMRANGEBYSCORE', key, '-inf', 0}, {'ZMSCORE', key, ''}, {'ZCOUNT', key, 0, 0},
  {'ZRANGEBYSCORE', key, 0, 0}, {'ZREVRANGE', key, 0, 0}, {'PEXPIREAT', key, 1},
  {'TIME'}, {'PUBLISH', channel, ''},
}) do
  if not (call[1] == 'PUBLISH' and channel == '') and not may(unpack(call)) then
    missing[#missing + 1] = string.lower(call[1])
    if call[1] == 'DEL' and not redis.acl_check_cmd then
      return missing
    end
  end
end
-- A script may not ask an older server for this one.
if redis.acl_check_cmd and not redis.acl_check_cmd('EVALSHA', '', 0) then
  missing[#missing + 1] = 'evalsha'
end
may('DEL', key)
return missing
