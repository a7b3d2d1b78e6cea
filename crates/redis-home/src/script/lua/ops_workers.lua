-- Operations of workers, connections and homes.

-- Answers the incarnation, and the rest of the work to end the previous worker of that name, as `fail` does.
function ops.start(a)
  local name, ttl = a.name, a.ttl
  local before, left = worker_of(name), '0'
  read('ZCARD', OWN .. 'workers:ends')
  if before then left = end_worker(name, before, 'w', after_caller())[1] end
  local n, ends = max(store.incarnation or 0, log - 1) + 1, log_end + tonumber(ttl)
  store.incarnation, is_store_changed = n, true
  call('HSET', OWN .. 'workers', name, pack({ n = n, ttl = tonumber(ttl) }))
  call('ZADD', OWN .. 'workers:ends', ends, name)
  if not store.lost or ends < store.lost then store.lost = ends end
  return { n, left }
end

-- One step, the first with an empty cursor. Answers the cursor of the next one, '0' after the last, and receipts of
-- tasks that the worker is to stop working on.
function ops.beat(a)
  local name, incarnation, cursor = a.name, a.incarnation, a.cursor
  local w, refusal = alive(name, incarnation)
  if not w then return refusal end
  -- A worker stays alive even if one of its queues, or another key of it, is bad.
  if cursor == '' then call('ZADD', OWN .. 'workers:ends', log_end + w.ttl, name) end
  -- A page of queues, and how many of its receipts earlier steps have answered.
  local from, answered = string.match(cursor, '^(%d+)/(%d+)$')
  from = from or (cursor == '' and '0' or cursor)
  local page = try('SSCAN', w.key .. ':queues', from, 'COUNT', QUEUES_AT_ONCE) or { '0', {} }
  local out, queues, skip, left = { page[1] }, page[2], tonumber(answered) or 0, SLICE
  local upto = integer(skip + left)
  table.sort(queues)
  for _, queue in ipairs(queues) do
    attempt(function()
      local q = open(queue)
      -- Later calls settle what is due in the others.
      if slice_left > 0 then settle(q) end
      local index = q.k .. ':off:' .. w.holder
      local all = read('ZCARD', index)
      local first = min(skip, all)
      skip = skip - first
      if all - first > left then out[1] = from .. '/' .. upto end
      local ids = left > 0 and all > first and read('ZRANGE', index, first, first + left - 1) or {}
      left = left - #ids
      if #ids > 0 then fetch(q, ids) end
      for _, id in ipairs(ids) do out[#out + 1] = receipt(id, get(q, id)) end
      check(q, 'holders')
      release(q, w.holder)
    end)
  end
  local lapsed = cursor == '' and try('LRANGE', w.key .. ':lapsed', 0, -1)
  for _, one in ipairs(lapsed or {}) do out[#out + 1] = one end
  if lapsed then call('DEL', w.key .. ':lapsed') end
  return out
end

function ops.work(a)
  local name, incarnation, queue = a.name, a.incarnation, a.queue
  local w, refusal = alive(name, incarnation)
  if not w then return refusal end
  read('SCARD', base(queue) .. ':workers')
  read('SADD', w.key .. ':works', queue)
  call('SADD', base(queue) .. ':workers', name)
  return 'done'
end

function ops.rest(a)
  local name, incarnation, queue = a.name, a.incarnation, a.queue
  local w, refusal = alive(name, incarnation)
  if not w then return refusal end
  local q = open_whole(queue)
  read('ZCARD', q.k .. ':held:' .. w.holder)
  read('SCARD', w.key .. ':queues')
  read('SREM', w.key .. ':works', queue)
  call('SREM', q.k .. ':workers', name)
  return end_holder(q, w.holder)
end

-- One step, the first with an empty `left`; answers what is left, and how many tasks were requeued.
function ops.stop(a)
  local name, incarnation, left = a.name, a.incarnation, a.left
  if left ~= '' then return go_on_for(left) end
  local w, refusal = alive(name, incarnation)
  if not w then return refusal end
  return end_worker(name, w, nil, after_caller())
end

-- One step; answers as `stop`.
function ops.fail(a)
  local name, left = a.name, a.left
  if left ~= '' then return go_on_for(left) end
  local w = worker_of(name)
  return w and end_worker(name, w, 'w', after_caller()) or { '0', 0 }
end

-- The number of tasks of a queue that a worker holds.
local function held_of(queue, holder) return try('ZCARD', base(queue) .. ':held:' .. holder) or 0 end

-- Answers the next cursor, then the data of some workers. One may be reported twice. The number of its tasks is false
-- if many queues must be read for it: `held` does so.
function ops.workers(a)
  local cursor = a.cursor
  local some = read('HSCAN', OWN .. 'workers', cursor, 'COUNT', SLICE)
  local out, queues_left = { some[1] }, SLICE
  for i = 1, #some[2], 2 do
    local name = some[2][i]
    local w, leased = worker_of(name), false
    if ends_of(name, w) > log then
      local queues = try('SCARD', w.key .. ':queues') or 0
      if queues <= queues_left then
        leased, queues_left = 0, queues_left - queues
        for _, queue in ipairs(queues > 0 and call('SMEMBERS', w.key .. ':queues') or {}) do
          leased = leased + held_of(queue, w.holder)
        end
      end
      out[#out + 1] = { name, w.n, w.ttl, leased }
    end
  end
  return out
end

-- Answers the next cursor, then some queues of a worker, each followed by how many tasks it holds of it. A queue may
-- be reported twice.
function ops.held(a)
  local name, incarnation, cursor = a.name, a.incarnation, a.cursor
  local holder = 'w:' .. name .. '#' .. incarnation
  local page = try('SSCAN', queues_held_by(holder), cursor, 'COUNT', SLICE) or { '0', {} }
  local out = { page[1] }
  for _, queue in ipairs(page[2]) do
    out[#out + 1], out[#out + 2] = queue, held_of(queue, holder)
  end
  return out
end

-- Ends the leases of a connection, at no cost.
local function close_conn(conn)
  local _, outcome = end_all('c:' .. conn, nil, after_caller())
  try('SREM', OWN .. 'home:' .. home_of(conn), conn)
  return outcome
end

-- One step of ending the leases of connections; answers whether there is more to do.
function ops.close_conns(a)
  local answer = 'done'
  for _, conn in ipairs(rest(a)) do
    if close_conn(conn) == 'more' then answer = 'more' end
  end
  return answer
end

-- Ends the leases of the connections of a lost home, a few at a time.
local function end_home(home)
  local conns = try('SRANDMEMBER', OWN .. 'home:' .. home, GONE_MAX)
  for _, conn in ipairs(conns or {}) do
    end_anew('c:' .. conn, nil, log, true)
    call('SREM', OWN .. 'home:' .. home, conn)
  end
  -- Without the set of its connections they are searched for.
  if not conns then end_anew('h:' .. home, nil, log, true) end
  if not conns or #conns < GONE_MAX then call('ZREM', OWN .. 'homes', home) end
end

-- The next time to check whether a home is silent or lost.
local function next_home()
  local score = first_of(OWN .. 'homes')
  return score and look_at(score)
end

-- Handles homes without a heartbeat, a few at a time. While Redis hung or was away, none could send one. So each
-- silent home gets a last chance, counted from when a script notices the silence: its score then ends in a half, and
-- it is lost unless it sends a heartbeat by then.
function end_lost_homes()
  if not store.homes or store.homes > log then return end
  local upto = log + SCORE_AHEAD_MS
  local due = read('ZRANGEBYSCORE', OWN .. 'homes', '-inf', upto, 'WITHSCORES', 'LIMIT', 0, GONE_MAX)
  for i = 1, #due, 2 do
    local home, at = due[i], tonumber(due[i + 1])
    if at ~= floor(at) then
      end_home(home)
      break
    end
    call('ZADD', OWN .. 'homes', upto + LOST_MS - 0.5, home)
  end
  store.homes, is_store_changed = next_home(), true
end

-- Records a heartbeat of the home of this name.
function ops.home(a)
  local name = a.name
  read('ZADD', OWN .. 'homes', alive_score(), name)
  if not store.homes then
    store.homes, is_store_changed = log + SILENT_MS, true
  end
  return 'done'
end

-- Requeues deliveries that did not reach their caller.
function ops.requeue(a)
  local name = a.queue
  local q, ids = open_whole(name), {}
  settle(q)
  for _, word in ipairs(rest(a)) do
    local id, _, _, is_current = claim(q, word)
    if is_current then ids[#ids + 1] = id end
  end
  end_leases(q, ids)
  return 'done'
end

-- The first call of a home to a server: notices a start of the server as soon as possible.
function ops.epoch()
  local homes = try('ZCARD', OWN .. 'homes') and next_home() or nil
  if homes ~= store.homes then
    store.homes, is_store_changed = homes, true
  end
  return log
end

