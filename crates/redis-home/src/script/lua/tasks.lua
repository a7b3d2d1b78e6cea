-- Tasks: their records, payloads and states, and the end of a lease.

-- The record of a task. States: R ready, D delayed by log time, A delayed by the wall clock, L leased, X dead.
local function get(q, id)
  local record = q.fetched and q.fetched[id]
  if record == nil then record = read('HGET', q.k .. ':task', id) end
  if record then return unpacked(record) end
  if read('HEXISTS', q.k .. ':body', id) == 1 then return { st = 'R' } end
end

local function put(q, id, t)
  if q.fetched then q.fetched[id] = nil end
  call('HSET', q.k .. ':task', id, pack(t))
end

-- Reads the records of many tasks at once, before they are used one by one.
local function fetch(q, ids)
  local records = values(q.k .. ':task', ids)
  q.fetched = {}
  for i, id in ipairs(ids) do q.fetched[id] = records[i] end
end

local function pushed_at(id, t) return t.pu or tonumber(string.match(id, '^%d+')) end

local function shown(id)
  local ms, seq = string.match(id, '^(%d+)%-0*(%d+)$')
  return ms .. '-' .. seq
end

local INDEX = { R = ':ready', D = ':delayed', A = ':appointed' }

-- The set of queues of which a holder has tasks.
local function queues_held_by(holder)
  local name = string.sub(holder, 3)
  if string.sub(holder, 1, 2) == 'w:' then return OWN .. 'worker:' .. name .. ':queues' end
  return OWN .. 'conn:' .. name
end

-- Removes a queue from those of a holder if it holds nothing there: only queues in that set are looked at when it
-- sends a heartbeat or ends.
local function release(q, holder)
  if call('EXISTS', q.k .. ':held:' .. holder) == 1 then return end
  call('SREM', q.k .. ':holders', holder)
  try('SREM', queues_held_by(holder), q.name)
end

-- Removes a task from the indexes of its state.
local function leave(q, id, t)
  local k = q.k
  q.dirty = true
  if t.st == 'L' then
    call('ZREM', k .. ':leased', id)
    if t.dl then call('ZREM', k .. ':ends', id) end
    if t.ho then
      try('ZREM', k .. ':held:' .. t.ho, id)
      if t.cx then try('ZREM', k .. ':off:' .. t.ho, id) end
      release(q, t.ho)
    end
    if q.s['s-max-leased'] then q.wake = true end
  elseif t.st == 'X' then
    call('ZREM', k .. ':dead', id)
  else
    call('ZREM', k .. INDEX[t.st], id)
    q.s.bytes = q.s.bytes - call('HSTRLEN', k .. ':body', id)
    if t.ex then call('ZREM', k .. ':expires', id) end
  end
end

-- Adds a waiting task to the indexes of its state.
local function wait(q, id, t, st, score)
  t.st, t.at, t.sq, t.dl, t.ln, t.ho, t.lp, t.cx = st, nil, nil, nil, nil, nil, nil, nil
  t.du = st ~= 'R' and score or nil
  q.dirty = true
  call('ZADD', q.k .. INDEX[st], score, id)
  q.s.bytes = q.s.bytes + call('HSTRLEN', q.k .. ':body', id)
  if t.ex then
    call('ZADD', q.k .. ':expires', t.ex, id)
    sooner(q, t.ex)
  end
  if st == 'R' then
    q.ready = q.ready + 1
  elseif st == 'D' then
    sooner(q, score)
  elseif not q.s.appointed or score < q.s.appointed then
    q.s.appointed = score
  end
end

local function lane(t) return -(t.pr or 0) * PRIORITY_STEP end

local function at_back(q, t)
  q.s.tail = q.s.tail + 1
  return lane(t) + q.s.tail
end

-- Reserves positions at the front for `n` tasks; returns the first one.
local function front(q, n)
  q.s.head, q.dirty = q.s.head - n, true
  return q.s.head + 1
end

local function forget(q, id, t)
  leave(q, id, t)
  if t.nm then call('HDEL', q.k .. ':names', t.nm) end
  if q.fetched then q.fetched[id] = nil end
  call('HDEL', q.k .. ':task', id)
  call('HDEL', q.k .. ':body', id)
  q.s.len = q.s.len - 1
end

local function remove(q, id, t, is_cancelled)
  forget(q, id, t)
  if is_cancelled then
    q.cancelled[#q.cancelled + 1] = shown(id)
  else
    q.gone = q.gone + 1
  end
end

local function tries_max(q, t) return t.tm or q.s['s-tries'] or 25 end

local function tries(t) return (t.f or 0) + (t.l or 0) + (t.w or 0) end

local function is_last_try(q, t) return tries(t) + 1 >= tries_max(q, t) end

-- Exponential backoff with a maximum, times a jitter between a half and one that depends on the task alone.
local function backoff(q, id, t, times)
  local whole = min((t.bo or q.s['s-backoff'] or 1000) * 2 ^ min(times - 1, 60), 3600000)
  local mixed = tonumber(string.sub(redis.sha1hex(id .. ':' .. (t.n or 0)), 1, 8), 16)
  return whole - mixed % (floor(whole / 2) + 1)
end

-- Counts the cause by which a delivery ends: f failed, l lapsed, w worker lost, or none.
local function end_delivery(t, cause)
  if cause then t[cause] = (t[cause] or 0) + 1 end
end

-- Moves a dead task to the dead-letter queue.
local function move(q, id, t)
  local name = q.s['s-dead-letter']
  if not name or name == q.name or not is_sound(name) then return end
  local to = open(name)
  if call('HEXISTS', to.k .. ':body', id) == 1 then return end
  local body = call('HGET', q.k .. ':body', id)
  forget(q, id, t)
  call('HSET', to.k .. ':body', id, body)
  to.s.len, to.s.pushed = to.s.len + 1, to.s.pushed + 1
  if t.nm and call('HSETNX', to.k .. ':names', t.nm, id) == 0 then t.nm = nil end
  t.ex, t.di = nil, nil
  t.pu = pushed_at(id, t)
  wait(to, id, t, 'R', at_back(to, t))
  put(to, id, t)
end

local function bury(q, id, t, cause, reason)
  leave(q, id, t)
  if t.st == 'L' then end_delivery(t, cause) end
  t.rs = reason or t.rs
  t.st, t.at, t.sq, t.dl, t.ln, t.ho, t.lp, t.cx, t.la, t.du = 'X', nil, nil, nil, nil, nil, nil, nil, nil, nil
  t.di = moment
  q.s.deaths = q.s.deaths + 1
  call('ZADD', q.k .. ':dead', q.s.deaths, id)
  put(q, id, t)
  move(q, id, t)
end

-- Ends a lease, and puts the task into a state with a score.
local function requeue(q, id, t, st, score, cause, reason)
  leave(q, id, t)
  end_delivery(t, cause)
  t.rs = reason or t.rs
  t.la = (cause == 'l' or cause == 'w') and 1 or nil
  wait(q, id, t, st, score)
  put(q, id, t)
end

-- The end of receipts of this moment: log time, and ten bits of the id of this run of the server. A server that takes
-- over may not know the last deliveries of its predecessor; its receipts for the same tasks differ.
local function incarnation() return log * 1024 + (tonumber(string.sub(store.epoch, 1, 3), 16) or 0) % 1024 end

local function receipt(id, t) return shown(id) .. '@' .. integer(t.n or 0) .. '.' .. integer(t.e or 0) end

-- The score for a place: F, B, or milliseconds from now.
local function requeue_to(q, id, t, place, cause, reason)
  if place == 'F' then
    requeue(q, id, t, 'R', lane(t) + front(q, 1), cause, reason)
  elseif place == 'B' or place == '0' then
    requeue(q, id, t, 'R', at_back(q, t), cause, reason)
  else
    requeue(q, id, t, 'D', moment + tonumber(place), cause, reason)
  end
end

local REASONS = { l = 'lease lapsed', w = 'worker lost' }

-- Ends a lease without its holder. A task that goes to the front gets the position `place`. Returns whether it took
-- that.
local function end_lease(q, id, t, cause, place)
  if cause == 'l' and t.ho and string.sub(t.ho, 1, 2) == 'w:' then
    local told = OWN .. 'worker:' .. string.sub(t.ho, 3) .. ':lapsed'
    if try('RPUSH', told, receipt(id, t)) then call('LTRIM', told, -10000, -1) end
  end
  if t.cx then
    remove(q, id, t, true)
    return false
  end
  local policy = cause and t.lp
  local is_over = cause and is_last_try(q, t)
  if policy and policy[2] then is_over = (t.l or 0) + (t.w or 0) >= policy[2] end
  if is_over and policy and policy[3] == 'delete' then
    remove(q, id, t, false)
  elseif is_over then
    bury(q, id, t, cause, REASONS[cause])
  elseif policy and policy[1] ~= 'F' then
    requeue_to(q, id, t, policy[1], cause)
  else
    local times = (t.l or 0) + (t.w or 0) + 1
    if cause and not policy and times >= 3 then
      requeue(q, id, t, 'D', moment + backoff(q, id, t, times - 2), cause)
    else
      requeue(q, id, t, 'R', lane(t) + place, cause)
      return true
    end
  end
  return false
end

-- Ends leases together; tasks that go to the front keep their order there.
local function end_leases(q, ids, cause)
  local place = front(q, #ids)
  for _, id in ipairs(ids) do
    if end_lease(q, id, get(q, id), cause, place) then place = place + 1 end
  end
end

