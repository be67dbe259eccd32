-- The last part of release.lua: lets waiters in, of all kinds.
local lock = KEYS[1]
if q.holder == TOKEN then
  -- The exclusive phase ends.
  drop_cut()
  q.holder = nil
  advance(q)
  if not q.holder then
    redis.call('DEL', lock)
  end
  return 1
end
-- Also after the release of an exclusive request: the shared entries behind it may have waited for it only.
advance(q)
return q.released or 0
