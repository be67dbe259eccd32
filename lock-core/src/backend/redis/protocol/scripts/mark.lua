-- Updates the marker of one of several servers. The marker says how long clients have watched the server with its data.
--
-- KEYS[1]  the marker: the server's run id, a random name, and milliseconds, with colons between them; without an expiry.
-- KEYS[2]  the fencing counter. It is created here, so that its second is over before the first vote.
-- ARGV[1]  the run id of this server.
-- ARGV[2]  the random name for a new marker.
-- ARGV[3]  the beginning of the marker that the client has watched; empty: it has not seen one.
-- ARGV[4]  for how many milliseconds it has been watched.
--
-- Returns the marker; empty if none can be written.
--
-- A marker of another run was loaded from a file, which may lack the last locks. The watched time counts only if the marker has
-- existed all the time.
pcall(read_counter, KEYS[2], time_in_tokens())
local run = ARGV[1] .. ':'
local name, watched = string.match(redis.call('GET', KEYS[1]) or '', '^(.+:)(%d+)$')
if not name or string.sub(name, 1, #run) ~= run then
  redis.pcall('SET', KEYS[1], run .. ARGV[2] .. ':0')
elseif name == ARGV[3] and tonumber(ARGV[4]) > tonumber(watched) then
  redis.pcall('SET', KEYS[1], name .. ARGV[4])
end
return redis.call('GET', KEYS[1]) or ''
