-- Phases: who has the lock, and who enters next. advance(), at the end, admits requests in all modes. Only the most frequent case
-- is in release.lua: an exclusive holder that hands the lock over to an exclusive entry.
--
-- Phases are fair: exclusive phases alternate with shared ones while both kinds wait. A shared phase has a cut, which is the time
-- of its beginning, or that of the first exclusive entry that arrived later. Shared entries placed before the cut belong to the
-- phase, even if all its first holders leave before these are granted. After them, an exclusive entry is next. The cut is stored
-- in the beats rather than in the marker, since it has to outlive the marker. It expires with the beats, when no entry was checked
-- for so long that all of them are silent. For example, if three readers and a writer wait when a writer releases the lock, the
-- readers enter together, in whatever order they arrived, and then the writer, ahead of readers that arrive later.
--
-- The first write removes an entry. A server that is out of memory permits that, and then the other writes of the call.

-- The largest number of grants in one call. More would stop the server for milliseconds.
local PART = 64

-- Returns the first entry that is not shared. Removes silent entries before it, and members not written by us.
local function first_other(q)
  local queue = KEYS[3]
  while true do
    local found = redis.call('ZRANGEBYSCORE', queue, OTHERS, '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
    local text = found[1]
    if not text then
      return nil
    end
    local entry = parse(text)
    local is_other = entry and (entry.kind == 'x' or entry.kind == 'o' or tonumber(entry.kind))
    if is_other and (text == q.own or not is_silent(q, text, tonumber(found[2]) - BAND)) then
      return entry
    end
    redis.call('ZREM', queue, text)
  end
end

-- Admits shared entries that were removed from the queue. Returns whether a fencing token could be issued. `more`: other entries
-- wait after the last of these.
local function enter_shared(q, entries, contended, more)
  local lock, holders, permits = KEYS[1], KEYS[5], KEYS[6]
  local fencing, stamp = q.holder and string.match(q.holder, '(%d+):$'), nil
  local adds, latest, now_ms = {}, 0, milliseconds(q)
  for _, entry in ipairs(entries) do
    local is_own = entry.text == q.own
    if not fencing or not stamp and not is_own then
      -- Later entries of a phase have its fencing token, but separate stamps.
      stamp = next_token(q)
      if not stamp then
        break
      end
      fencing = fencing or string.format('%.0f', stamp)
    end
    local is_last = more and q.left == 1 and 1 or 0
    if is_own then
      q.mine = {tonumber(fencing), contended, 0, is_last}
    end
    if is_own or notify(entry, string.format('%s %.0f %d 0 %d', fencing, stamp, contended, is_last)) then
      local ends = now_ms + (is_own and q.own_ttl or tonumber(entry.ttl))
      adds[#adds + 1], adds[#adds + 2] = ends, entry.text
      latest = math.max(latest, ends)
      q.left = q.left - 1
    end
  end
  -- The entries so far become holders, even if the clock gave no stamp for the rest.
  if adds[1] and q.holder then
    -- A copy of the acquire may have entered already: never shorten its lease.
    redis.call('ZADD', holders, 'GT', unpack(adds))
    q.unsettled = true
  elseif adds[1] then
    q.holder = 'lc1+s:' .. fencing .. ':'
    redis.call('DEL', holders, permits)
    redis.call('SET', lock, q.holder, 'PXAT', latest)
    redis.call('ZADD', holders, '9007199254740991', '#', unpack(adds))
    redis.call('PEXPIREAT', holders, latest)
  end
  return not q.refused
end

-- Removes shared entries from the queue, and admits those that are not silent. `found`: the entries and their places.
local function admit(q, found, contended)
  local queue = KEYS[3]
  local count = #found / 2
  local more = count > q.left
  local all, alive = {}, {}
  for i = 1, math.min(count, q.left) do
    local text = found[2 * i - 1]
    all[i] = text
    local entry = parse(text)
    -- A member that is not a shared entry was not written by us, and is skipped.
    if entry and (text == q.own or entry.kind == 's' and not is_silent(q, text, tonumber(found[2 * i]))) then
      alive[#alive + 1] = entry
    end
  end
  redis.call('ZREM', queue, unpack(all))
  q.waiting = q.waiting - #all
  return enter_shared(q, alive, contended, more)
end

-- Grants the free lock to an exclusive entry that was removed from the queue. Returns whether to try the next entry, because the
-- process of this one is gone, or it was answered with a result. For the caller's entry, the lock is left free.
local function enter_exclusive(q, entry)
  local lock = KEYS[1]
  if entry.text ~= q.own then
    if entry.kind == 'o' and answer_with_result(q, entry) then
      return true
    end
    local fencing = next_token(q)
    if not fencing then
      return false
    end
    if not notify(entry, string.format('%.0f', fencing)) then
      return true
    end
    redis.call('SET', lock, entry.token, 'PX', entry.ttl)
    q.holder = entry.token
  end
  drop_cut()
  return false
end

-- Admits the shared entries that belong to the phase, or that begin one on a free lock. Returns nothing if there are none, or
-- otherwise whether there may be more. `other`: the first entry that is not shared.
local function admit_before_cut(q, other)
  local queue, beats = KEYS[3], KEYS[4]
  local cut = redis.pcall('ZSCORE', beats, '#')
  cut = type(cut) == 'string' and tonumber(cut) - BAND
  if not other and cut then
    drop_cut()
  end
  if other and not cut and q.holder then
    -- The cut was evicted with the beats, so nothing more enters the phase.
    return false
  end
  local limit = string.format('(%.0f', other and cut or BAND)
  local found = redis.call('ZRANGEBYSCORE', queue, '-inf', limit, 'WITHSCORES', 'LIMIT', 0, q.left + 1)
  if not found[1] then
    return nil
  end
  local was_free = not q.holder
  local is_given = admit(q, found, other and 1 or 0)
  if is_given and other and not cut and was_free and q.holder then
    -- The cut is set to now, so if not all of a large batch was admitted, the places of the rest are before it.
    redis.pcall('ZADD', beats, BAND + microseconds(q), '#')
    redis.pcall('PEXPIRE', beats, '2200')
  end
  return is_given
end

-- Admits the next entries of the queue that may enter now. Returns whether there may be more.
local function let_next_in(q)
  local queue = KEYS[3]
  local other = first_other(q)
  local has_permits = is_permits(q.holder)
  if not has_permits then
    local admitted = admit_before_cut(q, other)
    if admitted ~= nil then
      return admitted
    end
  end
  local n = other and tonumber(other.kind)
  if not other or q.holder and not (has_permits and n and has_room(n)) then
    return false
  end
  leave(other.text)
  q.waiting = redis.call('ZCARD', queue)
  if n then
    return enter_permits(q, other)
  end
  return enter_exclusive(q, other)
end

-- Admits the entries of the queue that may enter now, in any mode. q.holder is the value of the lock, and is updated. The caller
-- has settled a marker, unless the queue is empty. An exclusive entry of the caller is only removed, and the lock is left
-- free for it.
--
-- `kind`  if present: q.own has this kind, and may enter as a non-exclusive holder without having queued.
local function advance(q, kind)
  local queue = KEYS[3]
  local waiting = redis.pcall('ZCARD', queue)
  if type(waiting) ~= 'number' then
    -- A key of another type under the queue's name is not a queue, and must not prevent a release. Other errors are raised.
    waiting = string.find(waiting.err, 'WRONGTYPE', 1, true) and 0 or redis.call('ZCARD', queue)
  end
  q.waiting, q.left = waiting, PART
  if q.holder and not is_marker(q.holder) then
    return
  end
  -- Bounded by the queue: each round but the last removes an entry.
  while q.waiting > 0 and q.left > 0 and let_next_in(q) do
    q.waiting = redis.call('ZCARD', queue)
  end
  if q.waiting == 0 then
    -- Without waiters, no cut is needed.
    drop_cut()
    -- A newcomer enters directly only if nothing waits.
    local may_enter = kind and not q.mine and not q.refused
    if may_enter and kind == 's' and (not q.holder or is_shared(q.holder)) then
      enter_shared(q, {{text = q.own}}, 0, false)
    elseif may_enter and kind ~= 's' and (not q.holder or is_permits(q.holder) and has_room(tonumber(kind))) then
      enter_permits(q, {text = q.own})
    end
  end
  if q.unsettled then
    settle(q)
  end
end
