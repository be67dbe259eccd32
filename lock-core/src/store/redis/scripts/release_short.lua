-- The short path of release.lua. That script follows, with all that it needs, and goes on with `holder` and `first`. `first` is the
-- entry that was taken out.
local holder = redis.pcall('GET', KEYS[1])
local first

-- The key is ours and not to be kept. Without waiters it is deleted, and the call ends here.
if holder == ARGV[1] and (ARGV[3] or '0') == '0' and not ARGV[4] then
  first = redis.pcall('ZPOPMIN', KEYS[3])
  if first.err then
    -- release.lua handles the error.
    first = nil
  elseif not first[1] then
    return redis.call('DEL', KEYS[1])
  end
end
