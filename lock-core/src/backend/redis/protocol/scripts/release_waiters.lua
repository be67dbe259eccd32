-- The last part of release.lua: admits waiters of all kinds.
local lock = KEYS[1]
if q.holder == TOKEN then
  -- The exclusive phase ends. Without a cut, all shared entries belong to the next phase, whatever their order.
  drop_cut()
  q.holder = nil
  advance(q)
  if not q.holder then
    redis.call('DEL', lock)
  end
  return 1
end
-- Needed even when an exclusive request leaves the queue: the shared entries after it may have waited only for it.
advance(q)
return q.released or 0
