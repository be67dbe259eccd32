-- Bodies that are to run once. Their requests have the kind o, and are exclusive. The release after such a body stores its result.
-- As long as that is stored, it is the reply to every request of the kind, and none of them gets the lock.

-- If there is a result, answers an entry that was removed from the queue, by a message that makes its process ask for the result.
-- Returns whether it did. One call answers only some entries; when their processes ask, those calls answer the next ones.
local function answer_with_result(q, entry)
  local result = KEYS[7]
  if redis.call('EXISTS', result) == 0 then
    return false
  end
  notify(entry, string.format('done %.0f', microseconds(q)))
  q.left = q.left - 1
  return true
end
