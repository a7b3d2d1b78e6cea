-- Operations on tasks, and `ops`, the table of all operations by their names in ARGUMENTS.

local FULL = { '!', 'QUEUEFULL' }

-- The task that a reference names: its id, and the task if the reference applies to it.
local function claim(q, word)
  local id, n, e = string.match(word, '^(%d+%-%d+)@(%d+)%.(%d+)$')
  if not id then
    local t = look(q, word)
    return word, t, false, t ~= nil and t.st == 'L'
  end
  local t = look(q, id)
  local is_current = t ~= nil and t.st == 'L' and t.n == tonumber(n) and t.e == tonumber(e)
  return id, t, true, is_current
end

local function is_full(q, count, bytes)
  local length, size = q.s['s-max-length'], q.s['s-max-bytes']
  if length then
    local waiting = read('ZCARD', q.k .. ':ready') + read('ZCARD', q.k .. ':delayed') + read('ZCARD', q.k .. ':appointed')
    if waiting + count > length then return true end
  end
  return size ~= nil and q.s.bytes + bytes > size
end

-- The task that is dropped first if there is no room: the oldest of the lowest priority, or the one that is due
-- soonest.
local function first_to_go(q)
  local last = call('ZRANGE', q.k .. ':ready', -1, -1, 'WITHSCORES')
  if last[1] then
    local its_lane = floor(tonumber(last[2]) / PRIORITY_STEP + 0.5) * PRIORITY_STEP
    return call('ZRANGEBYSCORE', q.k .. ':ready', its_lane - PRIORITY_STEP / 2, '+inf', 'LIMIT', 0, 1)[1]
  end
  return call('ZRANGE', q.k .. ':delayed', 0, 0)[1] or call('ZRANGE', q.k .. ':appointed', 0, 0)[1]
end

local function make_room(q, count, bytes)
  if not is_full(q, count, bytes) then return true end
  local length, size = q.s['s-max-length'], q.s['s-max-bytes']
  local is_too_much = length and count > length or size and bytes > size
  if q.s['s-overflow'] ~= 'drop-oldest' or is_too_much then return false end
  check_all(q)
  -- A maximum that was lowered by much is reached step by step.
  for _ = 1, count + SLICE do
    local id = is_full(q, count, bytes) and first_to_go(q)
    if not id then break end
    remove(q, id, get(q, id), false)
  end
  return true
end

local ops = {}

-- The list that ends the arguments of a call.
local function rest(a)
  local list = {}
  for i = a.rest, #args do list[#list + 1] = args[i] end
  return list
end

-- Adds tasks; answers their ids.
function ops.push(a)
  local name = a.queue
  local q = open(name)
  if not q.s.listed then read('ZCARD', OWN .. 'queues') end
  settle(q)
  local before = a.rest - 1
  local count, size = #args - before, 0
  for i = a.rest, #args do size = size + #args[i] end
  if not make_room(q, count, size) then return FULL end
  local s, ids, ttl = q.s, next_ids(count), q.s['s-ttl']
  local bodies, places, tail = {}, {}, s.tail
  for i = 1, count do
    bodies[2 * i - 1], bodies[2 * i] = ids[i], args[before + i]
    places[2 * i - 1], places[2 * i] = tail + i, ids[i]
  end
  -- A record has the data that the id does not contain.
  local has_records = store.ms ~= log or ttl
  if has_records then
    check(q, 'task')
    check(q, 'expires')
  end
  try_at_once('HSET', q.k .. ':body', bodies)
  try_at_once('ZADD', q.k .. ':ready', places, function() at_once('HDEL', q.k .. ':body', ids) end)
  if has_records then
    local records, ends, record = {}, {}, pack({ st = 'R', pu = log, ex = ttl and log_end + ttl })
    for i = 1, count do
      records[2 * i - 1], records[2 * i] = ids[i], record
      if ttl then ends[2 * i - 1], ends[2 * i] = log_end + ttl, ids[i] end
    end
    at_once('HSET', q.k .. ':task', records)
    at_once('ZADD', q.k .. ':expires', ends)
  end
  if ttl then sooner(q, log_end + ttl) end
  s.tail, s.len, s.bytes, s.pushed = s.tail + count, s.len + count, s.bytes + size, s.pushed + count
  rate(s, 'pushes', count)
  q.ready, q.dirty = q.ready + count, true
  return ids
end

-- Adds one task. Its name begins with 'n', or is 'h' for the hash of the payload; empty fields are not set.
function ops.add(a)
  local name, payload, task_name, delay = a.queue, a.payload, a.name, a.delay
  local at, priority, tries_of, backoff_of, ttl = a.at, a.priority, a.tries, a.backoff, a.ttl
  local q = open(name)
  settle(q)
  if task_name == 'h' then task_name = 'h' .. redis.sha1hex(payload) end
  if task_name ~= '' then
    local id = read('HGET', q.k .. ':names', task_name)
    local t = id and look(q, id)
    if t then return { id, 0, t.st } end
  end
  local st = 'R'
  if (tonumber(delay) or 0) > 0 then
    st = 'D'
  elseif tonumber(at) and tonumber(at) > wall then
    st = 'A'
  end
  if not q.s.listed then read('ZCARD', OWN .. 'queues') end
  check(q, 'body')
  check(q, 'task')
  check(q, string.sub(INDEX[st], 2))
  if not make_room(q, 1, #payload) then return FULL end
  local id, t = next_ids(1)[1], { pu = log }
  t.nm = task_name ~= '' and task_name or nil
  t.pr = tonumber(priority) ~= 0 and tonumber(priority) or nil
  t.tm, t.bo = tonumber(tries_of), tonumber(backoff_of)
  ttl = tonumber(ttl) or q.s['s-ttl']
  t.ex = ttl and log_end + ttl
  if t.ex then check(q, 'expires') end
  call('HSET', q.k .. ':body', id, payload)
  if t.nm then call('HSET', q.k .. ':names', t.nm, id) end
  if st == 'D' then
    wait(q, id, t, 'D', log_end + tonumber(delay))
  elseif st == 'A' then
    wait(q, id, t, 'A', tonumber(at))
  else
    wait(q, id, t, 'R', at_back(q, t))
  end
  put(q, id, t)
  q.s.len, q.s.pushed = q.s.len + 1, q.s.pushed + 1
  rate(q.s, 'pushes', 1)
  return { id, 1, t.st }
end

-- The metadata of a task.
local function more(q, id, t)
  local name = t.nm and string.sub(t.nm, 1, 1) == 'n' and string.sub(t.nm, 2)
  return { name or false, t.f or 0, t.l or 0, t.w or 0, tries_max(q, t), pushed_at(id, t), t.rs or false }
end

-- The number of payloads that are read at a time, so that large ones do not fill the memory of Redis.
local function at_a_time(q)
  local mean = max(1, q.s.bytes / max(1, q.s.len))
  return max(1, min(ARGS_MAX / 2, floor(STEP_BYTES / mean)))
end

-- Delivers up to `count` tasks of a settled queue, with up to `room` bytes; the first task of a call may have more,
-- up to `terms.first`. Expired tasks are removed and skipped, at most SLICE of them in all queues of a call. Returns
-- how many tasks and bytes, whether it stopped because there were more expired ones, and whether because the next
-- task is too large.
local function pop_from(q, index, count, room, terms, is_meta, out)
  local s, k = q.s, q.k
  if s.paused then return 0, 0 end
  if s['s-max-leased'] then count = min(count, s['s-max-leased'] - read('ZCARD', k .. ':leased')) end
  if count <= 0 then return 0, 0 end
  local length = terms.ms
  if not length and not terms.holder then length = s['s-lease'] end
  local taken, bytes, leased, ends, kept = {}, 0, {}, {}, {}
  local step, is_full_reply, is_end, e, expired = at_a_time(q), false, false, incarnation(), 0
  local expired_max = max(pass_left, SLICE_MIN)
  while #taken < count and not is_full_reply and not is_end and expired < expired_max do
    -- Delivered tasks leave the index at the end, expired ones at once.
    local most = min(step, count - #taken)
    local some = read('ZRANGE', k .. ':ready', #taken, #taken + most - 1)
    is_end = #some < most
    local bodies, records = values(k .. ':body', some), values(k .. ':task', some)
    for i, id in ipairs(some) do
      local body, t = bodies[i], records[i] and unpacked(records[i]) or { st = 'R' }
      if t.ex then check_all(q) end
      if t.ex and t.ex <= log then
        expire(q, id, t)
        expired = expired + 1
      else
        is_full_reply = bytes + #body > (#out > 0 and room or terms.first)
        if is_full_reply then break end
        if t.ex then call('ZREM', k .. ':expires', id) end
        bytes, s.seq = bytes + #body, s.seq + 1
        taken[#taken + 1] = id
        t.st, t.at, t.sq, t.n, t.e, t.la = 'L', log, s.seq, (t.n or 0) + 1, e, nil
        t.ln, t.dl, t.ho, t.lp = length, length and log_end + length, terms.holder, terms.policy
        leased[#leased + 1], leased[#leased + 2] = t.sq, id
        if t.dl then ends[#ends + 1], ends[#ends + 2] = t.dl, id end
        kept[#kept + 1], kept[#kept + 2] = id, pack(t)
        out[#out + 1] = { index, id, body, t.n, t.e, log, 0, is_meta and more(q, id, t) or false }
      end
    end
  end
  pass_left = pass_left - expired
  local is_over = not is_end and expired >= expired_max
  if #taken == 0 then return 0, 0, is_over, is_full_reply end
  try_at_once('ZADD', k .. ':leased', leased)
  try_at_once('ZADD', k .. ':ends', ends, function() at_once('ZREM', k .. ':leased', taken) end)
  at_once('ZREM', k .. ':ready', taken)
  at_once('HSET', k .. ':task', kept)
  if length then sooner(q, log_end + length) end
  if terms.holder then
    at_once('ZADD', k .. ':held:' .. terms.holder, leased)
    call('SADD', k .. ':holders', terms.holder)
    -- Its leases end then, unless it sends a heartbeat earlier.
    sooner(q, terms.ends)
  end
  s.bytes, q.dirty = s.bytes - bytes, true
  return #taken, bytes, is_over, is_full_reply
end

-- Opens a queue for a pop, which may be for a holder.
local function open_for(name, holder)
  local q = open(name)
  if holder then
    check_all(q)
    read('ZCARD', q.k .. ':held:' .. holder)
  end
  return q
end

local function home_of(conn) return string.match(conn, '^[^:]*') end

-- The next check time of a home with this score.
local function look_at(score) return floor(score - SCORE_AHEAD_MS + 0.5) end

-- The score of a home that is alive now.
local function alive_score() return log + SILENT_MS + SCORE_AHEAD_MS end

-- Records that a connection holds tasks of a queue. The connections of a lost home are lost. A home without such
-- connections sends no heartbeats and may be about to count as lost: so the pop is one.
local function hold(conn, queue)
  local home = home_of(conn)
  call('SADD', OWN .. 'conn:' .. conn, queue)
  call('SADD', OWN .. 'home:' .. home, conn)
  call('ZADD', OWN .. 'homes', alive_score(), home)
  if not store.homes then
    store.homes, is_store_changed = log + SILENT_MS, true
  end
end

-- Whether something is due in a queue.
local function is_due(q) return (q.s.next or log + 1) <= log or (q.s.appointed or wall + 1) <= wall end

-- Leases tasks. `place`, `limit` and `ending` are the policy for a lapse; with `meta` the answer contains the
-- metadata of each task; `room` is the limit of payload bytes in the answer, and `first` that of its first task.
-- Answers 'again' if more is due than one call may move. With `room`, an answer that was ended early ends with 'full'
-- if the next task has too many bytes for it, or with 'more' if more is due before it.
function ops.pop(a)
  local count, ms, worker, incarnation_of, conn = a.count, a.lease, a.worker, a.incarnation, a.connection
  local place, limit, ending, meta, bytes_max = a.place, a.limit, a.ending, a.meta, a.room
  local terms = { ms = tonumber(ms), first = tonumber(a.first) or REPLY_BYTES_MAX * 2 }
  local w, refusal
  if incarnation_of ~= '' then
    w, refusal = alive(worker, incarnation_of)
    if not w then return refusal end
    terms.holder, terms.ends = w.holder, w.ends
    read('SCARD', w.key .. ':queues')
  elseif conn ~= '' then
    terms.holder = 'c:' .. conn
    terms.ends = look_at(alive_score())
    read('ZCARD', OWN .. 'homes')
    read('SCARD', OWN .. 'conn:' .. conn)
    read('SCARD', OWN .. 'home:' .. home_of(conn))
  end
  if place ~= '' then terms.policy = { place, tonumber(limit) or false, ending } end
  local out, left, room, is_more, stop = {}, tonumber(count), tonumber(bytes_max) or REPLY_BYTES_MAX, false, nil
  for index, name in ipairs(rest(a)) do
    if left == 0 then break end
    if room <= 0 then
      stop = 'full'
      break
    end
    -- Tasks of earlier queues are delivered all the same.
    if #out > 0 and not (is_sound(name) and attempt(open_for, name, terms.holder)) then break end
    local q = open_for(name, terms.holder)
    if index > 1 and slice_left <= 0 and is_due(q) then
      is_more, stop = true, 'more'
      break
    end
    settle(q)
    local taken, bytes, is_over, is_full = pop_from(q, index - 1, left, room, terms, meta == '1', out)
    if taken == 0 and not is_over and not is_full and not q.s.paused then
      if index > 1 and slice_left <= 0 and are_sources_due(q) then
        is_more, stop = true, 'more'
        break
      end
      -- Tasks of other queues may have died since those were last looked at.
      local is_ours, at = attempt(settle_sources, q)
      is_more = is_more or is_ours and at ~= nil and at <= log
      if q.ready > 0 then
        taken, bytes, is_over, is_full = pop_from(q, index - 1, left, room, terms, meta == '1', out)
      end
    end
    left, room = left - taken, room - bytes
    is_more = is_more or is_over or is_due(q)
    if taken > 0 and w then call('SADD', w.key .. ':queues', name) end
    if taken > 0 and conn ~= '' then hold(conn, name) end
    -- The rest of this queue comes before the tasks of the next one.
    if is_over or is_full then
      stop = is_full and 'full' or 'more'
      break
    end
  end
  -- Something that is due may make a task ready.
  if #out == 0 and is_more and stop ~= 'full' then return 'again' end
  if stop and bytes_max ~= '' then out[#out + 1] = stop end
  return out
end

-- Finishes tasks: those that are leased, or with the scope 'lapsed' also those whose lease has ended. Answers their
-- indexes.
function ops.ack(a)
  local scope, name = a.scope, a.queue
  local q, finished, is_done, plain, timed, places, ends = open(name), {}, {}, {}, {}, {}, {}
  settle(q)
  local words, ids = rest(a), {}
  for i, word in ipairs(words) do ids[i] = string.match(word, '^[^@]*') end
  fetch(q, ids)
  if q.s.len <= #ids then read('ZCARD', OWN .. 'queues') end
  for index, word in ipairs(words) do
    local id, t, is_receipt, is_current = claim(q, word)
    if (is_current or t and t.la and scope == 'lapsed' and not is_receipt) and not is_done[id] then
      if t.st ~= 'L' or t.ho or t.nm then
        check_all(q)
        forget(q, id, t)
      else
        plain[#plain + 1], places[#places + 1], places[#places + 2] = id, t.sq, id
        if t.dl then timed[#timed + 1], ends[#ends + 1], ends[#ends + 2] = id, t.dl, id end
      end
      is_done[id] = true
      finished[#finished + 1] = index - 1
      q.done[#q.done + 1] = shown(id)
    end
  end
  if #finished == 0 then return finished end
  -- Most tasks have no worker and no name, and are removed together.
  try_at_once('ZREM', q.k .. ':leased', plain)
  local function undo() at_once('ZADD', q.k .. ':leased', places) end
  try_at_once('ZREM', q.k .. ':ends', timed, undo)
  try_at_once('HDEL', q.k .. ':body', plain, function()
    undo()
    at_once('ZADD', q.k .. ':ends', ends)
  end)
  at_once('HDEL', q.k .. ':task', plain)
  if q.s['s-max-leased'] then q.wake = true end
  q.s.len, q.s.finished, q.dirty = q.s.len - #plain, q.s.finished + #finished, true
  rate(q.s, 'finishes', #finished)
  return finished
end

function ops.extend(a)
  local name, word, ms = a.queue, a.task, a.ms
  local q = open(name)
  settle(q)
  local id, t, _, is_current = claim(q, word)
  if not is_current then return 'stale' end
  if t.cx then return 'cancelled' end
  t.ln, t.dl = tonumber(ms), log_end + tonumber(ms)
  read('ZADD', q.k .. ':ends', t.dl, id)
  q.dirty = true
  sooner(q, t.dl)
  put(q, id, t)
  return 'done'
end

-- Ends a lease. `failed` is empty, '1', or 'last' if the task is not to be tried again; `place` may be empty.
ops['return'] = function(a)
  local name, word, place, failed, reason = a.queue, a.task, a.place, a.failed, a.reason
  local q = open_whole(name)
  settle(q)
  local id, t, _, is_current = claim(q, word)
  if not is_current then return 'stale' end
  if t.cx then
    remove(q, id, t, true)
    return 'cancelled'
  end
  if failed == '' then
    requeue_to(q, id, t, place ~= '' and place or 'F')
  elseif failed == 'last' or is_last_try(q, t) then
    bury(q, id, t, 'f', reason)
  elseif place ~= '' then
    requeue_to(q, id, t, place, 'f', reason)
  else
    requeue(q, id, t, 'D', log_end + backoff(q, id, t, (t.f or 0) + 1), 'f', reason)
  end
  return 'done'
end

-- One step of returning tasks that have been leased for longer than `elapsed`, from after the delivery `from` (empty:
-- where the last call stopped that looked at too many) up to `upto` (empty: the last). Answers where the next step
-- begins, or empty if this was the last, up to which, and tasks.
function ops.recover(a)
  local name, count, elapsed, from, upto = a.queue, a.count, a.elapsed, a.from, a.upto
  local q, out, bytes, looked_at = open_whole(name), {}, 0, 0
  count, elapsed = tonumber(count), tonumber(elapsed)
  settle(q)
  local s, is_over = q.s, false
  local start, last = tonumber(from) or s.recovering or 0, tonumber(upto) or s.seq
  while not is_over and #out < count and looked_at < LOOKED_AT and bytes < STEP_BYTES do
    local ids = call('ZRANGEBYSCORE', q.k .. ':leased', '(' .. integer(start), last, 'LIMIT', 0, 100)
    fetch(q, ids)
    looked_at, is_over = looked_at + #ids, #ids == 0
    for _, id in ipairs(ids) do
      local t = get(q, id)
      is_over = log - t.at < elapsed
      if is_over or #out >= count or bytes >= STEP_BYTES then break end
      start = t.sq
      if not t.dl and not t.ho then
        if t.cx then
          remove(q, id, t, true)
        else
          local body = call('HGET', q.k .. ':body', id)
          bytes = bytes + #body
          s.seq, q.dirty = s.seq + 1, true
          t.at, t.sq, t.n, t.e = log, s.seq, t.n + 1, incarnation()
          call('ZADD', q.k .. ':leased', t.sq, id)
          put(q, id, t)
          out[#out + 1] = { 0, id, body, t.n, t.e, log, 0, false }
        end
      end
    end
  end
  local stopped_at = looked_at >= LOOKED_AT and not is_over and start or nil
  if stopped_at ~= s.recovering then
    s.recovering, q.dirty = stopped_at, true
  end
  return { is_over and '' or integer(start), integer(last), out }
end

