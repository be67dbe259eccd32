-- The short path of renew.lua, for an exclusive lease. The call ends here unless it asks for fencing tokens and declares their clock.
if not ARGV[5] then
  local holder = redis.pcall('GET', KEYS[1])
  -- A key of another type belongs to another client. Other errors are returned.
  if type(holder) == 'table' and not string.find(holder.err, 'WRONGTYPE', 1, true) then
    return holder
  end
  if holder ~= ARGV[1] then
    return 0
  end
  -- If another client removed the expiry of our key, this sets it again.
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
  if not ARGV[4] or not KEYS[2] then
    return 1
  end
end

