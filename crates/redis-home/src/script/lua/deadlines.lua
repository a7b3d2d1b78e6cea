-- Deadlines: what falls due, expires or lapses is settled before an operation looks at the queue.

local function expire(q, id, t)
  if q.s['s-expired'] == 'dead' then
    bury(q, id, t, nil, 'expired')
  else
    remove(q, id, t, false)
  end
end

-- The deadline of a lease. A lease from before the start of the server is prolonged, which is decided only when it
-- would end.
local function deadline(t)
  if t.at < store.started then return max(t.dl, store.started + min(t.ln, START_MS)) end
  return t.dl
end

local function put_off(q, id, t, at)
  t.dl, q.dirty = at, true
  call('ZADD', q.k .. ':ends', at, id)
  sooner(q, at)
  put(q, id, t)
end

-- The end of a holder that is not complete in all its queues: cause, time, and progress. Nil for other holders.
local function gone_of(holder)
  if not store.gone then return nil end
  if gone_known[holder] == nil then
    local record = try('HGET', OWN .. 'gone', holder)
    gone_known[holder] = record and unpacked(record) or false
  end
  return gone_known[holder] or nil
end

-- The end of the holder of a leased task, if it has ended. A holder that continues keeps the tasks that it took
-- after that.
local function ended_of(q, t)
  if not t.ho then return nil end
  local ended = q.s.ending and q.s.ending[t.ho]
  if ended then
    local before = ended[6]
    if before and t.sq <= before[4] then return before end
    return t.sq <= ended[4] and ended or nil
  end
  local gone = gone_of(t.ho)
  if not gone or string.sub(t.ho, 1, 2) == 'c:' and t.at > gone.at then return nil end
  return { false, gone.cause, gone.at, q.s.seq }
end

-- Ends a lease whose holder is gone. `ended` is
--   1  the next position at the front, if some are reserved
--   2  the cause
--   3  its time
--   4  the last delivery by then
--   5  the last delivery that was examined, if leased tasks are searched
--   6  an earlier end of the holder for another cause, while its tasks are not all requeued
local function end_one(q, id, t, ended)
  moment = ended[3]
  local place = ended[1] or front(q, 1)
  if end_lease(q, id, t, ended[2] ~= '' and ended[2] or nil, place) then ended[1], q.dirty = place + 1, true end
  moment = log_end
end

-- The number of tasks that the next step may move.
local function next_slice() return max(slice_left, SLICE_MIN) end

local function settle_leases(q)
  local slice = next_slice()
  local ids, s = call('ZRANGEBYSCORE', q.k .. ':ends', '-inf', log, 'LIMIT', 0, slice), q.s
  -- Positions for all due tasks are reserved at once, so that they keep their order slice by slice.
  if #ids > (s.lapsing and s.lapsing[2] or 0) then
    local all = call('ZCOUNT', q.k .. ':ends', '-inf', log)
    s.lapsing = { front(q, all), all }
  end
  slice_left = slice_left - #ids
  -- Tasks whose leases end at the same time are in the order of their deliveries.
  local leases = {}
  for i, id in ipairs(ids) do
    local t = get(q, id)
    leases[i] = { id = id, t = t, at = deadline(t) }
  end
  table.sort(leases, function(a, b)
    if a.at ~= b.at then return a.at < b.at end
    return a.t.sq < b.t.sq
  end)
  for _, lease in ipairs(leases) do
    local id, t, at = lease.id, lease.t, lease.at
    local ended = ended_of(q, t)
    moment = at
    if ended then
      end_one(q, id, t, ended)
    elseif at > log then
      put_off(q, id, t, at)
    elseif end_lease(q, id, t, 'l', s.lapsing[1]) then
      s.lapsing[1] = s.lapsing[1] + 1
    end
    s.lapsing[2] = s.lapsing[2] - 1
  end
  moment = log_end
  if #ids < slice then s.lapsing = nil end
end

-- The next tasks of a holder, and the number of leases examined: a full slice means that more may follow. If the
-- index has another type, all leased tasks are searched.
local function next_held(q, holder, ended, slice)
  local ids = try('ZRANGEBYSCORE', q.k .. ':held:' .. holder, '-inf', ended[4], 'LIMIT', 0, slice)
  if ids then return ids, #ids end
  ids = {}
  local from = '(' .. integer(ended[5] or 0)
  local leased = call('ZRANGEBYSCORE', q.k .. ':leased', from, ended[4], 'LIMIT', 0, slice)
  for _, id in ipairs(leased) do
    local t = get(q, id)
    ended[5] = t.sq
    if t.ho == holder then ids[#ids + 1] = id end
  end
  return ids, #leased
end

-- Ends a slice of the leases of a holder that is gone.
local function settle_holder(q, holder)
  local ended, slice = q.s.ending[holder], next_slice()
  local ids, looked_at = next_held(q, holder, ended, slice)
  slice_left = slice_left - looked_at
  for _, id in ipairs(ids) do
    local t = get(q, id)
    end_one(q, id, t, ended_of(q, t) or ended)
  end
  q.dirty = true
  if looked_at == slice then
    sooner(q, log)
    return
  end
  q.s.ending[holder] = nil
  if not next(q.s.ending) then q.s.ending = nil end
  release(q, holder)
end

local function settle_due(q, index, now)
  local slice = next_slice()
  local ids, s = call('ZRANGEBYSCORE', q.k .. index, '-inf', now, 'LIMIT', 0, slice), q.s
  if #ids > (s.coming and s.coming[2] or 0) then
    local all = call('ZCOUNT', q.k .. index, '-inf', now)
    s.coming = { s.tail + 1, all }
    s.tail = s.tail + all
  end
  slice_left = slice_left - #ids
  for _, id in ipairs(ids) do
    local t = get(q, id)
    leave(q, id, t)
    wait(q, id, t, 'R', lane(t) + s.coming[1])
    s.coming = { s.coming[1] + 1, s.coming[2] - 1 }
    put(q, id, t)
  end
  if #ids < slice then s.coming = nil end
end

-- The score of the `n`th member of an index, counted from 0.
local function score_at(key, n) return tonumber(call('ZRANGE', key, n, n, 'WITHSCORES')[2]) end

local function first_of(key) return score_at(key, 0) end

-- Applies what is due in a queue, as far as one call may.
local function settle(q)
  local s = q.s
  if s.next and s.next <= log then
    check_all(q)
    if s.ending then settle_holder(q, next(s.ending)) end
    -- Leases before times to live: a task that comes back after its time to live is not delivered again.
    settle_leases(q)
    local over = call('ZRANGEBYSCORE', q.k .. ':expires', '-inf', log, 'LIMIT', 0, next_slice())
    slice_left = slice_left - #over
    for _, id in ipairs(over) do expire(q, id, get(q, id)) end
    settle_due(q, ':delayed', log)
    s.next, q.dirty = nil, true
    for _, index in ipairs({ ':ends', ':expires', ':delayed' }) do
      local at = first_of(q.k .. index)
      if at then sooner(q, at) end
    end
    if s.ending then sooner(q, log) end
  end
  if s.appointed and s.appointed <= wall then
    check_all(q)
    settle_due(q, ':appointed', wall)
    s.appointed, q.dirty = first_of(q.k .. ':appointed'), true
  end
end

-- The task that a call is about, after everything due was applied to it, wherever it is among the due tasks.
local function look(q, id)
  local t = get(q, id)
  local ended = t and t.st == 'L' and ended_of(q, t)
  if ended then
    check_all(q)
    end_one(q, id, t, ended)
    t = get(q, id)
  elseif t and t.dl and deadline(t) <= log then
    check_all(q)
    end_lease(q, id, t, 'l', front(q, 1))
    t = get(q, id)
  end
  if t and t.ex and t.ex <= log and INDEX[t.st] then
    check_all(q)
    expire(q, id, t)
    t = get(q, id)
  end
  return t
end

-- Settles a few of the queues for which this is the dead-letter queue, as far as one call may; returns when to look
-- at the next of them.
local function settle_sources(q)
  local key = q.k .. ':sources'
  for i, name in ipairs(read('ZRANGEBYSCORE', key, '-inf', log, 'LIMIT', 0, 16)) do
    if i > 1 and slice_left <= 0 then break end
    -- Looking at one takes about as long as moving a task.
    slice_left = slice_left - 1
    local source = is_sound(name) and open(name)
    if source then settle(source) end
    if not source then
      call('ZADD', key, log + UNSOUND_MS, name)
    elseif source.s.next and source.s['s-dead-letter'] == q.name then
      call('ZADD', key, source.s.next, name)
    else
      call('ZREM', key, name)
    end
  end
  return first_of(key)
end

-- Whether there may be something to do in a queue for which this is the dead-letter queue.
local function are_sources_due(q)
  local first = try('ZRANGE', q.k .. ':sources', 0, 0, 'WITHSCORES')
  return first ~= nil and first[2] ~= nil and tonumber(first[2]) <= log
end

-- The next deadline of a queue, or of those for which it is the dead-letter queue, in log time and in wall time; 0
-- for none.
local function next_look(q, dead)
  local soonest = q.s.next or 0
  for _, at in ipairs({ dead or 0, store.lost or 0, store.homes or 0, store.gone or 0 }) do
    if at > 0 and (soonest == 0 or at < soonest) then soonest = at end
  end
  return { soonest, q.s.appointed or 0, log, wall }
end

