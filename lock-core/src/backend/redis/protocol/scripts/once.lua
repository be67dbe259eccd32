-- Bodies that are to run once. Their requests have the kind o, and are exclusive. The release of one that has run its body stores
-- the result, and while it is stored, it is the reply to every such request: none of them gets the lock.

-- Answers an entry that was removed from the queue, if there is a result: the message tells its process to ask for it. Returns
-- whether it did. One call answers a part of such entries, and the requests of each part cause the answers to the next.
local function answer_with_result(q, entry)
  local result = KEYS[7]
  if redis.call('EXISTS', result) == 0 then
    return false
  end
  notify(entry, string.format('done %.0f', microseconds(q)))
  q.left = q.left - 1
  return true
end
