-- Finds out which of the commands that the other scripts call are forbidden to this user.
--
-- ARGV[1]  an unused key of the reserved name space. No key is declared, so that any server of a cluster can be asked.
-- ARGV[2]  the channel of the asking process; empty: PUBLISH is not checked.
--
-- Returns their names; none if all may be called.
--
-- A server before Redis 7 can only execute a command to check it. What is written is deleted before the script ends, and no other
-- client sees it. So the right to delete is checked first.
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
  {'DEL', key}, {'SET', key, 0, 'PX', 1000}, {'GET', key}, {'XADD', key, 'MAXLEN', 0, '*', '', ''}, {'EXISTS', key},
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
-- On an older server, a script cannot check this one.
if redis.acl_check_cmd and not redis.acl_check_cmd('EVALSHA', '', 0) then
  missing[#missing + 1] = 'evalsha'
end
may('DEL', key)
return missing
