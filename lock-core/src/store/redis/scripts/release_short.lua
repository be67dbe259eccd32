-- The short way of release.lua, which stands behind it with all that it needs, and goes on with `holder` and `first`.
local holder = redis.pcall('GET', KEYS[1])
local first

-- The key is ours and not to be kept, and nobody waits.
if holder == ARGV[1] and (ARGV[3] or '0') == '0' and not ARGV[4] then
  first = redis.pcall('LPOP', KEYS[3])
  if type(first) == 'table' then
    -- An error, which the long way looks at.
    first = nil
  elseif not first or first == '' then
    return redis.call('DEL', KEYS[1])
  end
end
