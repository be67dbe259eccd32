-- Of the version with a list as its queue.
local holder = redis.pcall('GET', KEYS[1])
local first

if holder == ARGV[1] and (ARGV[3] or '0') == '0' and not ARGV[4] then
  first = redis.pcall('LPOP', KEYS[3])
  if type(first) == 'table' then
    first = nil
  elseif not first or first == '' then
    return redis.call('DEL', KEYS[1])
  end
end
