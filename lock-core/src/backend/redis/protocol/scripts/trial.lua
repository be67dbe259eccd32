-- Calls each command of the other scripts once, and finds the first one that the server does not have, or that this user may not run.
--
-- KEYS[1]  an unused key of the reserved name space, in a slot of this server.
-- ARGV[1]  a channel of the caller, to which it does not subscribe. In a cluster it has a tag between braces. If the server
-- has no sharded channels, that does not count as a refusal.
--
-- Returns that command and the server's words, or nothing. Only SET creates the key, which expires soon if it is not deleted.
local key = KEYS[1]
local publish = string.find(ARGV[1], '{', 1, true) and 'SPUBLISH' or 'PUBLISH'

for _, call in ipairs({
  {'XADD', key, 'NOMKSTREAM', 'MAXLEN', 0, '*', '', ''}, {'ZADD', key, 'XX', 0, ''}, {'ZRANGE', key, 0, 0}, {'ZREM', key, ''},
  {'ZCARD', key}, {'ZPOPMIN', key}, {'ZSCORE', key, ''}, {'ZREMRANGEBYSCORE', key, '-inf', 0},
  {'ZCOUNT', key, 0, 0}, {'ZRANGEBYSCORE', key, 0, 0}, {'ZREVRANGE', key, 0, 0}, {'PEXPIREAT', key, 1},
  {'SET', key, '', 'PX', 1000}, {'GET', key}, {'MGET', key}, {'EXISTS', key}, {'PTTL', key}, {'PEXPIRE', key, 1000}, {'DEL', key},
  {'TIME'}, {publish, ARGV[1], ''},
}) do
  local reply = redis.pcall(unpack(call))
  local refusal = type(reply) == 'table' and reply.err or ''
  -- The words of servers before Redis 7.2, of later ones, and of any outside of scripts; and of a server without the command.
  for _, words in ipairs({'user executing the script', 'ACL failure', 'NOPERM', 'nknown'}) do
    if string.find(refusal, words, 1, true) and not (words == 'nknown' and call[1] == 'SPUBLISH') then
      return {call[1], refusal}
    end
  end
end
