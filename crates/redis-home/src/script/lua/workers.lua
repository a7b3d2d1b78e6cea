-- Workers, connections and homes: what they hold, and how that comes back when they are lost.

-- The number of leases of an index that a holder lost when it ended, and the last delivery among them. A connection
-- that turns out to be alive keeps the tasks that it took later; deliveries are in the order of their times.
local function lost_since(q, index, holder, at)
  local all = call('ZCARD', index)
  if string.sub(holder, 1, 2) ~= 'c:' or at >= log then return all, q.s.seq end
  local low, high = 0, all
  while low < high do
    local middle = floor((low + high) / 2)
    if get(q, call('ZRANGE', index, middle, middle)[1]).at <= at then low = middle + 1 else high = middle end
  end
  return low, low > 0 and score_at(index, low - 1) or 0
end

-- Ends the leases of a holder in a queue, slice by slice if there are many; all of them count as ended from now on.
-- Returns how many tasks are requeued, and whether the holder keeps some that it took later.
local function end_holder(q, holder, cause)
  local held = q.k .. ':held:' .. holder
  if try('ZCARD', held) == 0 then
    release(q, holder)
    return 0, false
  end
  local at = moment
  settle(q)
  -- Without an index of their own, they are searched among all leased tasks.
  local index = try('ZCARD', held) and held or q.k .. ':leased'
  local all, last = lost_since(q, index, holder, at)
  local keeps, ended = all < call('ZCARD', index), q.s.ending and q.s.ending[holder]
  -- Tasks of an earlier end are being requeued already, for the cause of that end.
  local count = ended and call('ZCOUNT', index, '(' .. integer(ended[4]), last) or all
  if count == 0 then return 0, keeps end
  q.s.ending = q.s.ending or {}
  if ended and ended[2] == (cause or '') then
    q.s.ending[holder] = { front(q, all), ended[2], at, last, false, ended[6] or false }
  else
    q.s.ending[holder] = { front(q, count), cause or '', at, last, false, ended or false }
  end
  if slice_left > 0 then settle_holder(q, holder) else sooner(q, log) end
  return count, keeps
end

local function worker_of(name)
  local record = read('HGET', OWN .. 'workers', name)
  if not record then return nil end
  local w = unpacked(record)
  w.key = OWN .. 'worker:' .. name .. '#' .. integer(w.n)
  w.holder = 'w:' .. name .. '#' .. integer(w.n)
  return w
end

-- Some queues in which a holder may hold tasks, and the next cursor, 0 if these were the last. If the set of them has
-- another type, all queues of the store are searched by their numbers, which are returned too.
local function some_queues(holder, gone)
  -- A cursor is invalid after a start or a failover of Redis. Finished queues were removed from the set, and all
  -- others are visited again.
  if not gone.is_search and gone.epoch ~= store.epoch then gone.cursor = '0' end
  gone.epoch = store.epoch
  local page = not gone.is_search and try('SSCAN', queues_held_by(holder), gone.cursor, 'COUNT', QUEUES_AT_ONCE)
  if page then return page[2], page[1] end
  if not gone.is_search then gone.is_search, gone.cursor = true, '0' end
  local rows = try('ZRANGEBYSCORE', OWN .. 'queues', gone.cursor, '+inf', 'WITHSCORES', 'LIMIT', 0, QUEUES_AT_ONCE)
  if not rows then
    gone.is_held_up, rows = true, {}
  end
  local names, numbers = {}, {}
  for i = 1, #rows, 2 do names[#names + 1], numbers[#numbers + 1] = rows[i], rows[i + 1] end
  return names, #names == QUEUES_AT_ONCE and integer(tonumber(rows[#rows]) + 1) or '0', numbers
end

-- Which holders to end in a queue that is searched: the holder, if the queue knows it, or all connections of a home
-- (`h:home`), in order, after the last one.
local function holders_in(name, holder, gone)
  local all, found = try('SMEMBERS', base(name) .. ':holders'), {}
  local beginning = 'c:' .. string.sub(holder, 3) .. ':'
  for _, one in ipairs(all or {}) do
    local is_meant = one == holder or 'h:' == string.sub(holder, 1, 2) and string.sub(one, 1, #beginning) == beginning
    if is_meant and one > (gone.after or '') then found[#found + 1] = one end
  end
  -- Looking at a hundred holders takes about as long as moving a task.
  slice_left = slice_left - min(floor(#(all or {}) / 100), SLICE / 2)
  gone.is_held_up = gone.is_held_up or not all
  table.sort(found)
  return found
end

-- A lost worker works on no queue. A worker of the same name that was started later may.
local function end_works(holder)
  local key, name = OWN .. 'worker:' .. string.sub(holder, 3), string.match(holder, '^w:(.*)#%d+$')
  local works, is_known, successor = try('SPOP', key .. ':works', SLICE) or {}, attempt(worker_of, name)
  for _, queue in ipairs(works) do
    local is_again = is_known and successor and try('SISMEMBER', successor.key .. ':works', queue) == 1
    if not is_again then try('SREM', base(queue) .. ':workers', name) end
  end
  if try('LLEN', key .. ':lapsed') then call('UNLINK', key .. ':lapsed') end
  return #works < SLICE
end

-- Ends a holder in one of its queues, unless a key of another type prevents it. Returns how many tasks are requeued,
-- and whether nothing is left to do there.
local function end_in(name, holder, gone)
  if not is_sound(name) then
    gone.is_held_up, slice_left = true, slice_left - 1
    return 0, false
  end
  moment = gone.at
  local back, keeps = end_holder(open(name), holder, gone.cause)
  -- A queue counts even if the holder had nothing there.
  moment, slice_left = log_end, slice_left - 1
  if not keeps then try('SREM', queues_held_by(holder), name) end
  return back, not keeps
end

-- Ends a holder in the queues of a page of its set. Returns how many tasks are requeued, and whether the page was
-- finished. Otherwise it is read again, without the queues that are finished: at least the first.
local function end_in_page(names, holder, gone)
  local back, is_some_done = 0, false
  for _, name in ipairs(names) do
    if slice_left <= 0 and is_some_done then return back, false end
    local came_back, is_done = end_in(name, holder, gone)
    back, is_some_done = back + came_back, is_some_done or is_done
  end
  return back, true
end

-- The same in queues that are searched; continues after the last finished one.
local function end_in_search(names, numbers, holder, gone)
  local back, is_some_done = 0, false
  for i, name in ipairs(names) do
    if slice_left <= 0 and is_some_done then return back, false end
    gone.cursor = numbers[i]
    for _, one in ipairs(holders_in(name, holder, gone)) do
      if slice_left <= 0 and is_some_done then return back, false end
      back, gone.after, is_some_done = back + end_in(name, one, gone), one, true
    end
    gone.cursor, gone.after, is_some_done = integer(tonumber(numbers[i]) + 1), nil, true
    slice_left = slice_left - 1
  end
  return back, true
end

-- Ends a holder in some of its queues, within the limits of one call. Returns how many tasks are requeued, and
-- whether it is done, there is more to do, or a key of another type holds up a queue.
local function end_slice(holder, gone)
  if slice_left <= 0 then return 0, 'more' end
  local back, is_whole = 0, true
  if not gone.is_free then
    local names, cursor, numbers = some_queues(holder, gone)
    if numbers then
      back, is_whole = end_in_search(names, numbers, holder, gone)
    else
      back, is_whole = end_in_page(names, holder, gone)
    end
    if not is_whole then return back, 'more' end
    gone.cursor = cursor
    if cursor ~= '0' then return back, 'more' end
    if gone.is_held_up then
      gone.is_held_up = nil
      return back, 'held up'
    end
    -- It holds nothing any more.
    gone.is_free = true
  end
  slice_left = slice_left - 1
  if string.sub(holder, 1, 2) == 'w:' and not end_works(holder) then return back, 'more' end
  return back, 'done'
end

-- Continues to end a holder, and records what is left; other calls continue at the time `again`. Returns the same as
-- `end_slice`.
local function go_on_ending(holder, gone, again)
  local back, outcome = end_slice(holder, gone)
  if outcome == 'done' then
    gone_known[holder] = nil
    if store.gone then call('HDEL', OWN .. 'gone', holder) end
    return back, outcome
  end
  gone.again = outcome == 'held up' and log + UNSOUND_MS or again
  gone_known[holder] = gone
  call('HSET', OWN .. 'gone', holder, pack(gone))
  if not store.gone or gone.again < store.gone then
    store.gone, is_store_changed = gone.again, true
  end
  if store.gone_cursor then
    -- It may lie after the position that the current search has reached.
    store.gone_soonest, is_store_changed = min(store.gone_soonest or gone.again, gone.again), true
  end
  return back, outcome
end

-- Ends a holder from this moment on: all its leases count as ended now, and its tasks are requeued within the limits
-- of one call. An earlier end of it is forgotten.
local function end_anew(holder, cause, again, is_lost)
  read('HLEN', OWN .. 'gone')
  local is_search = string.sub(holder, 1, 2) == 'h:'
  local gone = { cause = cause or '', at = moment, cursor = '0', epoch = store.epoch, is_search = is_search, is_lost = is_lost }
  return go_on_ending(holder, gone, again)
end

-- The same, or continues an earlier end.
local function end_all(holder, cause, again)
  local gone = gone_of(holder)
  -- A connection that counted as lost and is closed now may have been alive, and may have taken more tasks.
  if not gone or gone.is_lost then return end_anew(holder, cause, again) end
  read('HLEN', OWN .. 'gone')
  return go_on_ending(holder, gone, again)
end

-- The caller that ends a holder continues; other calls do so if it has not for this long.
local function after_caller() return log + UNSOUND_MS end

-- The holder if the caller must continue to end it, '0' otherwise, and how many tasks were requeued.
local function step_of(holder, back, outcome) return { outcome == 'more' and holder or '0', back } end

-- Continues the end of a worker for the caller that began it.
local function go_on_for(holder)
  if not gone_of(holder) then return { '0', 0 } end
  return step_of(holder, end_all(holder, nil, after_caller()))
end

local function end_worker(name, w, cause, again)
  read('ZCARD', OWN .. 'workers:ends')
  read('HLEN', OWN .. 'gone')
  call('HDEL', OWN .. 'workers', name)
  call('ZREM', OWN .. 'workers:ends', name)
  return step_of(w.holder, end_all(w.holder, cause, again))
end

-- Continues to end holders, a few at a time.
local function end_gone()
  if not store.gone or store.gone > log then return end
  local page = read('HSCAN', OWN .. 'gone', store.gone_cursor or '0', 'COUNT', GONE_MAX)
  local soonest, dealt_with = store.gone_soonest, 0
  is_store_changed = true
  for i = 1, #page[2], 2 do
    -- A page may have more than was requested. It is read again, without the finished holders.
    if slice_left <= 0 or dealt_with == GONE_MAX then
      store.gone = log
      return
    end
    local holder, gone, outcome = page[2][i], unpacked(page[2][i + 1]), 'held up'
    if gone.again <= log then
      outcome, dealt_with = select(2, go_on_ending(holder, gone, log)), dealt_with + 1
    end
    if outcome ~= 'done' then soonest = min(soonest or gone.again, gone.again) end
  end
  if page[1] == '0' then
    if read('HLEN', OWN .. 'gone') > 0 then soonest = min(soonest or log + UNSOUND_MS, log + UNSOUND_MS) end
    store.gone, store.gone_cursor, store.gone_soonest = soonest, nil, nil
  else
    store.gone, store.gone_cursor, store.gone_soonest = log, page[1], soonest
  end
end

-- The time at which a worker is lost whose entry is due now. If its last heartbeat was before the start of Redis, it
-- gets a whole time to live from that start, which is decided only when it would be lost.
local function lost_at(w, ends)
  if ends - w.ttl < store.started then return max(ends, store.started + w.ttl) end
  return ends
end

-- Ends workers whose time to live is over, a few at a time.
local function end_lost_workers()
  if not store.lost or store.lost > log then return end
  local lost = read('ZRANGEBYSCORE', OWN .. 'workers:ends', '-inf', log, 'WITHSCORES', 'LIMIT', 0, GONE_MAX)
  for i = 1, #lost, 2 do
    if slice_left <= 0 then break end
    local name, w = lost[i], worker_of(lost[i])
    moment = w and lost_at(w, tonumber(lost[i + 1])) or log_end
    if not w then
      call('ZREM', OWN .. 'workers:ends', name)
    elseif moment > log then
      call('ZADD', OWN .. 'workers:ends', moment, name)
    else
      end_worker(name, w, 'w', log)
    end
  end
  moment, store.lost, is_store_changed = log_end, first_of(OWN .. 'workers:ends'), true
end

local GONE, REPLACED = { '!', 'GONE' }, { '!', 'REPLACED' }

-- The time at which a worker is lost without another heartbeat.
local function ends_of(name, w) return lost_at(w, tonumber(read('ZSCORE', OWN .. 'workers:ends', name)) or 0) end

-- This incarnation of a worker if it is alive; otherwise nil and the refusal: its time to live is over, or a later
-- worker of the same name has replaced it.
local function alive(name, incarnation)
  local w = worker_of(name)
  if not w then return nil, GONE end
  w.ends = ends_of(name, w)
  if w.ends <= log then return nil, GONE end
  if w.n == tonumber(incarnation) then return w end
  return nil, w.n > tonumber(incarnation) and REPLACED or GONE
end

