-- The queue on plain Redis. Each call is one operation, and atomic. It calls `run`, at the end of this file: as a
-- function of a library where Redis has those (7.0), since its parts are then created once and not for each call, as
-- a script elsewhere.
--
--   KEYS[1]  the beginning of the keys of the queue. It determines their slot, and never exists itself
--   KEYS[2]  the numbers of the store: last id, clock, counters. The text before `store` is where its other keys begin
--   ARGV     1 the operation
--            2 the prefix of all keys
--            3 log time by the caller's clock in microseconds: `least:guess:latest`, or empty if it does not know.
--              After a LATE also `:offset:ahead`: with this offset from the wall clock, log time was too late by
--              `ahead`
--            4 the wall clock in microseconds, or empty for that of Redis; tests move time by it
--            5 the id of this run of the server
--            then the arguments of the operation, which the generated table ARGUMENTS names (call.rs)
--
-- docs/reference/redis-keys.md lists the keys. A task without a record in `:task` was pushed without options and has
-- not been touched since.

-- A library is loaded in an environment that has almost no globals; each call sets these.
local call, floor, max, min, pack, unpacked

-- How many due tasks one call moves: two or three milliseconds of Redis. Callers ask for no more in one call either.
local SLICE = 200
-- At least this many of each kind in each queue, even if other queues of the same call used up the slice.
local SLICE_MIN = 16
-- How many lost workers and connections one call handles.
local GONE_MAX = 16
-- About how many queues of one of them one call looks at.
local QUEUES_AT_ONCE = 64
-- The distance between priorities in the scores of `:ready`; positions in the queue are below it.
local LANE = 17592186044416
local SEQ_MAX = 131071
-- Log time that was ahead by no more than this stands still until time has caught up; otherwise it stays ahead.
local CLOCK_US = 1000000
local EMPTY_QUEUE_S = 3600
local EMPTY_STORE_S = 604800
-- After the start of a server, older leases last at least this long, if they were that long.
local START_MS = 10000
-- How long a store stays listed after it was last listed.
local LISTED_MS = 3600000
-- How many unused stores one answer names.
local STALE = 32
-- When to retry an operation that a key of another type prevented.
local UNSOUND_MS = 2000
-- How long a home may be without a heartbeat before it counts as silent, and how long after that was noticed it
-- counts as lost. Homes send a heartbeat every ten seconds, and notice within three that one has failed.
local SILENT_MS = 15000
local LOST_MS = 15000
-- How far ahead the score of a home is of when it is to be looked at. The scripts of the release before end a home as
-- soon as its score is reached, and share the key with these while a deployment is rolled out.
local SCORE_AHEAD_MS = 15000
local REPLY_BYTES_MAX = 67108864
-- How many leases one call searches for those that nothing else ends.
local LOOKED_AT = 500
-- How many arguments one command gets.
local ARGS_MAX = 2000
-- About how many payload bytes are read at a time.
local STEP_BYTES = 4194304
-- How many ids one message carries.
local IDS_TOLD = 100
-- How often the clock is stored at least. Redis' own clock does not go back meanwhile; if it does, callers report it.
local CLOCK_KEPT_MS = 50
-- How often waiters look at a queue with tasks for a time of the wall clock: no message reports that this clock was
-- set.
local APPOINTED_LOOK_MS = 1000

-- The arguments of the call, and values derived from them.
local keys, args, STORE, OWN, PREFIX
-- The wall clock and log time, in whole milliseconds. Times from now on are counted from the end of this millisecond.
local wall, log, log_end
-- Log time if it had never been ahead, in microseconds.
local time_us
-- The time of the current change: now, or its deadline if it was due earlier.
local moment
-- The numbers of the store: clock, offset of log time, last id, epoch and its start, counters, the next lost worker.
local store, is_store_changed
local opened, order_opened
local end_lost_homes
-- How many due tasks this call may still move.
local slice_left
-- How many expired tasks the pops of this call may still skip.
local pass_left
-- Holders that this call has looked up: how each of them ended, or false.
local gone_known

local function integer(n) return string.format('%d', n) end

-- Ends the call, which must not have written anything: this key has a value of another type. `run` catches it.
local function wrong_type(key) error({ wrong = key }, 0) end

-- Raises the error of a command as `redis.call` would: before 7.0 Redis has only strings as errors.
local function raise(found) error(redis.REDIS_VERSION_NUM and found or found.err, 0) end

local function is_error(found) return type(found) == 'table' and found.err ~= nil end

local function is_wrong_type(found) return is_error(found) and string.find(found.err, 'WRONGTYPE', 1, true) ~= nil end

-- Calls a command that only reads, or the first one that writes.
local function read(command, key, ...)
  local found = redis.pcall(command, key, ...)
  if is_wrong_type(found) then wrong_type(key) end
  if is_error(found) then raise(found) end
  return found
end

-- Calls a command on a key that is not essential. Returns nil if the key has a value of another type, and leaves such
-- a key unchanged.
local function try(command, key, ...)
  local found = redis.pcall(command, key, ...)
  if is_wrong_type(found) then return nil end
  if is_error(found) then raise(found) end
  return found
end

-- Runs a function that a key of another type may end, without ending the call. Returns whether it ran to its end, and
-- its result.
local function attempt(act, ...)
  local is_done, answer = pcall(act, ...)
  if is_done then return true, answer end
  if type(answer) ~= 'table' or not answer.wrong then error(answer, 0) end
  moment = log_end
  return false
end

-- The packed value of a key, or nothing.
local function packed(key)
  local known = read('GET', key)
  if not known then return nil end
  local is_packed, value = pcall(unpacked, known)
  if not is_packed or type(value) ~= 'table' then wrong_type(key) end
  return value
end

-- Calls a command with a long list of arguments.
local function at_once(command, key, list)
  for i = 1, #list, ARGS_MAX do call(command, key, unpack(list, i, min(i + ARGS_MAX - 1, #list))) end
end

-- The same for the first commands that write. If the key has a value of another type, `undo` reverts the commands
-- before it, and the call ends. A check beforehand would cost frequent operations a tenth of their time.
local function try_at_once(command, key, list, undo)
  if #list == 0 then return end
  if not try(command, key, unpack(list, 1, min(ARGS_MAX, #list))) then
    if undo then undo() end
    wrong_type(key)
  end
  for i = ARGS_MAX + 1, #list, ARGS_MAX do call(command, key, unpack(list, i, min(i + ARGS_MAX - 1, #list))) end
end

-- The values of many fields of a hash.
local function values(key, fields)
  local all = {}
  for i = 1, #fields, ARGS_MAX do
    local some = read('HMGET', key, unpack(fields, i, min(i + ARGS_MAX - 1, #fields)))
    for n = 1, #some do all[#all + 1] = some[n] end
  end
  return all
end

---------------------------------------------------------------------------------------------------------------- time

local function begin()
  call, floor, max, min = redis.call, math.floor, math.max, math.min
  pack, unpacked = cmsgpack.pack, cmsgpack.unpack
  STORE, OWN, PREFIX, opened, order_opened = keys[2], string.sub(keys[2], 1, -6), args[2], {}, {}
  local known = packed(STORE)
  store = known or { clock = 0, offset = 0, ms = 0, seq = 0, epoch = '', started = 0 }
  local wall_us = tonumber(args[4])
  if not wall_us then
    local time = call('TIME')
    wall_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
  end
  local offset_us = store.offset * 1000 + (store.part or 0)
  time_us = wall_us + offset_us
  local least, guess, latest, judged, ahead = string.match(args[3], '^(%d+):(%d+):(%d+):?(%-?%d*):?(%d*)$')
  if least then
    if judged ~= '' then
      local corrected = wall_us + tonumber(judged) - tonumber(ahead)
      -- Another call may have set the offset since. The correction is still valid, unless the clock was set again.
      local is_within = time_us > tonumber(latest) and corrected >= tonumber(least) and corrected <= tonumber(latest)
      if judged == integer(offset_us) or is_within then time_us = corrected end
    end
    -- Either the call took long to arrive or the clock was set. Only the caller can decide which, and it repeats the
    -- call.
    if time_us > tonumber(latest) then return false, wall_us + offset_us, offset_us end
    if time_us < tonumber(least) then time_us = tonumber(guess) end
  end
  -- If log time was a little ahead, it stands still until time has caught up. If it was more, this caller knows too
  -- little.
  if time_us < store.clock * 1000 - CLOCK_US then time_us = store.clock * 1000 end
  local log_us = max(time_us, store.clock * 1000)
  wall, log, log_end = floor(wall_us / 1000), floor(log_us / 1000), floor((log_us + 999) / 1000)
  moment, slice_left, pass_left, gone_known = log_end, SLICE, SLICE, {}
  local offset = floor((time_us - wall_us) / 1000)
  local part = time_us - wall_us - offset * 1000
  is_store_changed = not known or log - store.clock >= CLOCK_KEPT_MS or offset ~= store.offset or part ~= (store.part or 0)
  if is_store_changed then store.clock, store.offset, store.part = log, offset, part end
  return true
end

-- Strings of three digits, made by the first call that needs them.
local digits

-- The next `count` ids. A push of thousands of tasks is one call, so this must be cheap: concatenating three strings
-- takes half the time of string.format.
local function next_ids(count)
  is_store_changed = true
  if not digits then
    digits = {}
    for i = 0, 999 do digits[i] = string.format('%03d', i) end
  end
  if log > store.ms then
    -- Stores of a cluster assign ids without asking each other, so each starts with another number.
    local first = OWN == PREFIX and 0 or tonumber(string.sub(redis.sha1hex(OWN), 1, 4), 16)
    store.ms, store.seq = log, first
  end
  local ids, ms, seq = {}, store.ms, store.seq
  local head = integer(ms) .. '-'
  for i = 1, count do
    seq = seq + 1
    if seq > SEQ_MAX then
      ms, seq = ms + 1, 1
      head = integer(ms) .. '-'
    end
    local high = floor(seq / 1000)
    ids[i] = head .. digits[high] .. digits[seq - high * 1000]
  end
  store.ms, store.seq = ms, seq
  return ids
end

-------------------------------------------------------------------------------------------------------------- queues

local function base(name)
  if name == '' or string.byte(name) == 125 then return PREFIX .. 'x:{x' .. name .. '}' end
  return PREFIX .. 'q:{' .. name .. '}'
end

-- Opens a queue. Its state is read once, and written once at the end if it has changed.
local function open(name)
  local q = opened[name]
  if q then return q end
  local k = base(name)
  local s = packed(k .. ':state') or { len = 0, bytes = 0, head = 0, tail = 0, seq = 0, deaths = 0, pushed = 0, finished = 0 }
  q = { name = name, k = k, s = s, ready = 0, gone = 0, done = {}, cancelled = {} }
  q.next_before, q.appointed_before = s.next, s.appointed
  opened[name] = q
  order_opened[#order_opened + 1] = q
  return q
end

-- The types of the keys of a queue, as commands that fail on any other type and cost nothing.
local MEASURE = {
  body = 'HLEN', task = 'HLEN', names = 'HLEN', holders = 'SCARD', workers = 'SCARD', sources = 'ZCARD',
  ready = 'ZCARD', delayed = 'ZCARD', appointed = 'ZCARD', leased = 'ZCARD', ends = 'ZCARD', expires = 'ZCARD', dead = 'ZCARD',
}

-- Checks that this key of a queue has the right type or does not exist, before anything is written.
local function check(q, part)
  if not q.is_checked then read(MEASURE[part], q.k .. ':' .. part) end
end

-- The same for all keys of a queue, once per call. Frequent operations skip it: it takes a fifth of the time of a
-- push.
local function check_all(q)
  if q.is_checked then return end
  for part, measure in pairs(MEASURE) do read(measure, q.k .. ':' .. part) end
  read('ZCARD', OWN .. 'queues')
  q.is_checked = true
end

-- Whether all keys of a queue have the right types. One bad queue must not hold up what is due in others.
local function is_sound(name) return (attempt(function() check_all(open(name)) end)) end

-- Opens a queue for an operation that may change any of its keys.
local function open_whole(name)
  local q = open(name)
  check_all(q)
  return q
end

-- Counts recent events in intervals of ten seconds. Returns about how many there were in the last ten seconds.
local function rate(s, what, n)
  local window, r = floor(log / 10000), s[what] or { 0, 0, 0 }
  local ago = window - r[1]
  if ago == 1 then
    r = { window, 0, r[2] }
  elseif ago > 1 then
    r = { window, 0, 0 }
  end
  r[2] = r[2] + n
  s[what] = r
  return r[2] + floor(r[3] * (10000 - log % 10000) / 10000)
end

-- A failed PUBLISH undoes nothing.
local function tell(q, kind, text) redis.pcall('PUBLISH', PREFIX .. kind .. ':' .. q.name, text) end

-- Publishes many ids.
local function tell_all(q, kind, ids)
  for i = 1, #ids, IDS_TOLD do tell(q, kind, table.concat(ids, ' ', i, min(i + IDS_TOLD - 1, #ids))) end
end

local function has_settings(s)
  if s.paused then return true end
  for field in pairs(s) do
    if string.sub(field, 1, 2) == 's-' then return true end
  end
  return false
end

-- The time in milliseconds after which the waiters of a queue must look at it for a deadline, if that is sooner than
-- they know.
local function sooner_ms(q)
  local s, ms = q.s, nil
  if s.next and not (q.next_before and q.next_before <= s.next) then ms = max(s.next - log, 0) end
  if s.appointed and not (q.appointed_before and q.appointed_before <= s.appointed) then
    local left = min(max(s.appointed - wall, 0), APPOINTED_LOOK_MS)
    ms = ms and min(ms, left) or left
  end
  return ms
end

-- Waiters for the dead-letter queue of a queue look at it when a task may die. They get a message if that is sooner
-- than they know.
local function note_deaths(q, ms)
  local grave = q.s['s-dead-letter']
  if not grave or grave == q.name or not q.s.next then return end
  -- Changes already made stay, even if this key has another type.
  redis.pcall('ZADD', base(grave) .. ':sources', q.s.next, q.name)
  tell({ name = grave }, 'wake', integer(ms or max(q.s.next - log, 0)))
end

-- Removes a queue from the sources of its dead-letter queue. When that is deleted itself, its sources stay: their tasks
-- may still die into it.
local function leave_grave(q)
  local grave = q.s['s-dead-letter']
  if grave then try('ZREM', base(grave) .. ':sources', q.name) end
end

-- Wakes the waiters of a queue. An empty message means that a task may be ready, a number in how many milliseconds
-- one will be. A paused queue has nothing for its waiters; they look when it is resumed.
local function wake(q)
  local ms = sooner_ms(q)
  if ms or q.is_set then note_deaths(q, ms) end
  if q.s.paused then return end
  -- Waiters look after either message, and then learn when to look next.
  if q.ready > 0 then return tell(q, 'work', q.ready) end
  if q.wake then return tell(q, 'wake', '') end
  if ms then tell(q, 'wake', integer(ms)) end
end

-- Writes the changes of the queues that were opened, and publishes them.
local function finish()
  for _, q in ipairs(order_opened) do
    local s = q.s
    if s.len > 0 and not s.listed then
      if not s.number then
        s.number = store.queues or 0
        store.queues, is_store_changed = s.number + 1, true
      end
      s.listed, q.dirty = true, true
      call('ZADD', OWN .. 'queues', s.number, q.name)
    elseif s.len == 0 and s.listed then
      s.listed, q.dirty, is_store_changed = nil, true, is_store_changed or OWN ~= PREFIX
      call('ZREM', OWN .. 'queues', q.name)
    end
    if q.dirty then
      if s.len > 0 or has_settings(s) then
        call('SET', q.k .. ':state', pack(s))
      else
        call('SET', q.k .. ':state', pack(s), 'EX', EMPTY_QUEUE_S)
      end
    end
  end
  -- Of several stores, an empty one is forgotten in time.
  if is_store_changed and OWN ~= PREFIX and call('EXISTS', OWN .. 'queues', OWN .. 'list') == 0 then
    call('SET', STORE, pack(store), 'EX', EMPTY_STORE_S)
  elseif is_store_changed then
    call('SET', STORE, pack(store))
  end
  for _, q in ipairs(order_opened) do
    wake(q)
    tell_all(q, 'done', q.done)
    tell_all(q, 'cancel', q.cancelled)
    if q.gone > 0 then tell(q, 'delete', q.gone) end
  end
end

-- Records that something is due in a queue at this log time.
local function sooner(q, at)
  if not q.s.next or at < q.s.next then q.s.next = at end
end

--------------------------------------------------------------------------------------------------------------- tasks

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

local function lane(t) return -(t.pr or 0) * LANE end

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

------------------------------------------------------------------------------------------------------------ deadlines

local function expire(q, id, t)
  if q.s['s-expired'] == 'dead' then
    bury(q, id, t, nil, 'expired')
  else
    remove(q, id, t, false)
  end
end

-- When a lease ends. A lease from before the start of the server lasts a while from then on, which is found out when
-- it would end.
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

-- How a holder ended that has not ended in all its queues yet: cause, time, and progress.
local function gone_of(holder)
  if not store.gone then return nil end
  if gone_known[holder] == nil then
    local record = try('HGET', OWN .. 'gone', holder)
    gone_known[holder] = record and unpacked(record) or false
  end
  return gone_known[holder] or nil
end

-- How the holder of a leased task ended, if it did. A holder that continues keeps the tasks that it took after that.
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

-- Ends a lease whose holder is gone. `ended` has the next position at the front if some are reserved, the cause, its
-- time, the last delivery by then, the last one that was looked at if they are searched, and an earlier end of the
-- holder for another cause if its tasks are not all requeued.
local function end_one(q, id, t, ended)
  moment = ended[3]
  local place = ended[1] or front(q, 1)
  if end_lease(q, id, t, ended[2] ~= '' and ended[2] or nil, place) then ended[1], q.dirty = place + 1, true end
  moment = log_end
end

-- How many tasks the next step may move.
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

-- The next tasks of a holder, and how many leases were looked at; there may be more if that is the whole slice. If
-- the index has another type, all leased tasks are searched.
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

------------------------------------------------------------------------------------------------------------- workers

-- How many leases of an index a holder lost when it ended, and the last delivery among them. A connection that turns
-- out to be alive keeps the tasks that it took later; deliveries are in the order of their times.
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

-- When a worker whose entry is due now is lost. If its last heartbeat was before the start of Redis, its whole time
-- to live counts from then on, which is only noticed when it would be lost.
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

-- When a worker is lost without another heartbeat.
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

---------------------------------------------------------------------------------------------------------- operations

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
    local its_lane = floor(tonumber(last[2]) / LANE + 0.5) * LANE
    return call('ZRANGEBYSCORE', q.k .. ':ready', its_lane - LANE / 2, '+inf', 'LIMIT', 0, 1)[1]
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

-- How many payloads are read at a time, so that large ones do not fill the memory of Redis.
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

-- When to look at a home with this score.
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

local VIEWS = { ready = 'R', leased = 'L', delayed = 'D', dead = 'X' }
local LISTS = { R = ':ready', L = ':leased', X = ':dead' }

-- Up to `count` tasks that are delayed by either clock, in order, from the `start`th on.
local function delayed_ids(q, start, count)
  local first, second = q.k .. ':delayed', q.k .. ':appointed'
  -- A binary search for how many of the first `start` tasks are in the first index; the others are in the second.
  local low, high = max(0, start - call('ZCARD', second)), min(start, call('ZCARD', first))
  while low < high do
    local middle = floor((low + high) / 2)
    if score_at(first, middle) <= score_at(second, start - middle - 1) then low = middle + 1 else high = middle end
  end
  local a = call('ZRANGE', first, low, low + count - 1, 'WITHSCORES')
  local b = call('ZRANGE', second, start - low, start - low + count - 1, 'WITHSCORES')
  local ids, i, j = {}, 1, 1
  for n = 1, count do
    local from_a = a[i] and (not b[j] or tonumber(a[i + 1]) <= tonumber(b[j + 1]))
    ids[n] = from_a and a[i] or b[j]
    if from_a then i = i + 2 else j = j + 2 end
  end
  return ids
end

-- Shows tasks, with at most `room` bytes of payloads; then the word `full` if that left some out.
function ops.inspect(a)
  local name, view, start, count, bytes_max = a.queue, a.view, a.start, a.count, a.room
  local q, st, out, bytes = open_whole(name), VIEWS[view], {}, 0
  start, count, bytes_max = tonumber(start), tonumber(count), tonumber(bytes_max)
  settle(q)
  attempt(settle_sources, q)
  local len = st == 'D' and call('ZCARD', q.k .. ':delayed') + call('ZCARD', q.k .. ':appointed')
    or call('ZCARD', q.k .. (LISTS[st] or ''))
  if start < 0 then start = len + start end
  if start < 0 or start >= len then return out end
  count = min(count, len - start)
  local ids = st == 'D' and delayed_ids(q, start, count) or call('ZRANGE', q.k .. LISTS[st], start, start + count - 1)
  local step = at_a_time(q)
  for first = 1, #ids, step do
    local some = {}
    for i = first, min(first + step - 1, #ids) do some[#some + 1] = ids[i] end
    local bodies, records = values(q.k .. ':body', some), values(q.k .. ':task', some)
    for i, id in ipairs(some) do
      local t, body = records[i] and unpacked(records[i]) or { st = 'R' }, bodies[i]
      bytes = bytes + #body
      if bytes > bytes_max and #out > 0 then
        out[#out + 1] = 'full'
        return out
      end
      local at = t.st == 'L' and t.at or t.st == 'X' and t.di or t.du or pushed_at(id, t)
      local rest = t.st == 'X' and more(q, id, t) or false
      out[#out + 1] = { 0, id, body, t.n or 0, t.e or 0, at, max(log - at, 0), rest }
    end
  end
  return out
end

local SETTINGS = { 'lease', 'tries', 'backoff', 'ttl', 'max-length', 'max-bytes', 'max-leased', 'expired', 'overflow', 'dead-letter' }

local function settings(q)
  local all = {}
  for i, field in ipairs(SETTINGS) do
    local value = q.s['s-' .. field] or ''
    all[i] = type(value) == 'number' and integer(value) or value
  end
  return all
end

local function counts(q)
  local k = q.k
  return read('ZCARD', k .. ':ready'), read('ZCARD', k .. ':delayed') + read('ZCARD', k .. ':appointed'),
    read('ZCARD', k .. ':leased'), read('ZCARD', k .. ':dead')
end

function ops.info(a)
  local name = a.queue
  local q = open_whole(name)
  settle(q)
  attempt(settle_sources, q)
  local ready, delayed, leased, dead = counts(q)
  local head, oldest = call('ZRANGE', q.k .. ':ready', 0, 0)[1], 0
  if head then oldest = max(log - pushed_at(head, get(q, head)), 0) end
  return {
    ready, delayed, leased, dead, q.s.bytes, oldest, q.s.paused and integer(q.s.paused) or '', q.s.pushed, q.s.finished,
    rate(q.s, 'pushes', 0), rate(q.s, 'finishes', 0), call('SCARD', q.k .. ':workers'), settings(q),
  }
end

local function cancel(q, word)
  local id, t, is_receipt, is_current = claim(q, word)
  if not t or is_receipt and not is_current then return 0 end
  if INDEX[t.st] then
    remove(q, id, t, true)
    return 1
  elseif t.st == 'L' and not t.cx then
    t.cx = 1
    if t.ho then try('ZADD', q.k .. ':off:' .. t.ho, t.sq, id) end
    put(q, id, t)
    q.cancelled[#q.cancelled + 1] = shown(id)
    return 1
  end
  return 0
end

-- Cancels tasks; answers how many.
function ops.cancel(a)
  local name = a.queue
  local q, n = open_whole(name), 0
  settle(q)
  for _, word in ipairs(rest(a)) do n = n + cancel(q, word) end
  return n
end

function ops.cancel_names(a)
  local name = a.queue
  local q, n = open_whole(name), 0
  settle(q)
  for _, task_name in ipairs(rest(a)) do
    local id = call('HGET', q.k .. ':names', 'n' .. task_name)
    if id then n = n + cancel(q, id) end
  end
  return n
end

-- One step of a search; answers the next cursor and how many were cancelled.
function ops.cancel_payload(a)
  local name, payload, cursor = a.queue, a.payload, a.cursor
  local q, n = open_whole(name), 0
  settle(q)
  local step = call('HSCAN', q.k .. ':body', cursor, 'COUNT', min(SLICE, at_a_time(q)))
  local ids = {}
  for i = 1, #step[2], 2 do
    if step[2][i + 1] == payload then ids[#ids + 1] = step[2][i] end
  end
  table.sort(ids)
  for _, id in ipairs(ids) do n = n + cancel(q, id) end
  return { step[1], n }
end

-- Runs a function on each task to which a reference of the caller applies; returns how many it accepted.
local function each_meant(q, a, act)
  local n = 0
  settle(q)
  for _, word in ipairs(rest(a)) do
    local id, t, is_receipt, is_current = claim(q, word)
    if t and (is_current or not is_receipt) and act(id, t) then n = n + 1 end
  end
  return n
end

function ops.bury(a)
  local name = a.queue
  local q = open_whole(name)
  return each_meant(q, a, function(id, t)
    if t.st == 'X' then return false end
    t.pu = pushed_at(id, t)
    bury(q, id, t)
    return true
  end)
end

local function revive(q, id, t)
  leave(q, id, t)
  t.f, t.l, t.w, t.ex, t.di = nil, nil, nil, nil, nil
  wait(q, id, t, 'R', at_back(q, t))
  put(q, id, t)
end

function ops.revive(a)
  local name = a.queue
  local q, n = open_whole(name), 0
  settle(q)
  for _, id in ipairs(rest(a)) do
    local t = get(q, id)
    if t and t.st == 'X' then
      revive(q, id, t)
      n = n + 1
    end
  end
  return n
end

-- One step of reviving all that were dead by `upto` deaths; answers whether there is more, and how many.
function ops.revive_all(a)
  local name, upto = a.queue, a.upto
  local q = open_whole(name)
  settle(q)
  if upto == '' then upto = integer(q.s.deaths) end
  local ids = call('ZRANGEBYSCORE', q.k .. ':dead', '-inf', upto, 'LIMIT', 0, SLICE)
  for _, id in ipairs(ids) do revive(q, id, get(q, id)) end
  return { #ids == SLICE and upto or '0', #ids }
end

function ops.delete(a)
  local name = a.queue
  local q = open_whole(name)
  return each_meant(q, a, function(id, t)
    remove(q, id, t, false)
    return true
  end)
end

-- One step of removing as many tasks as there were at the beginning. `view` may be empty, and `left` is empty in the
-- first step. Answers how many are left, and how many were removed.
function ops.purge(a)
  local name, view, left = a.queue, a.view, a.left
  local q, n, indexes = open_whole(name), 0, {}
  settle(q)
  for _, index in ipairs({ ':ready', ':delayed', ':appointed', ':dead' }) do
    local is_wanted = view == '' or index == ':' .. view or index == ':appointed' and view == 'delayed'
    if is_wanted then indexes[#indexes + 1] = index end
  end
  left = tonumber(left)
  if not left then
    left = 0
    for _, index in ipairs(indexes) do left = left + call('ZCARD', q.k .. index) end
  end
  local most = min(left, SLICE)
  for _, index in ipairs(indexes) do
    local ids = n < most and call('ZRANGE', q.k .. index, 0, most - n - 1) or {}
    for _, id in ipairs(ids) do remove(q, id, get(q, id), false) end
    n = n + #ids
  end
  return { n == SLICE and integer(left - n) or '0', n }
end

local PARTS = { 'ready', 'delayed', 'appointed', 'leased', 'ends', 'expires', 'dead', 'names', 'holders', 'task', 'body' }
local KEPT = { 'number', 'listed', 'seq', 'deaths' }

-- Records all holders of a queue; returns the keys of their tasks in it. There may be thousands of holders, so each
-- takes one command at most.
local function held_keys(q)
  local keys_found, off, are_off = {}, {}, 0
  q.all_holders = call('SMEMBERS', q.k .. ':holders')
  for i, holder in ipairs(q.all_holders) do
    keys_found[i], off[i] = q.k .. ':held:' .. holder, q.k .. ':off:' .. holder
    read('ZCARD', keys_found[i])
  end
  for i = 1, #off, ARGS_MAX do are_off = are_off + call('EXISTS', unpack(off, i, min(i + ARGS_MAX - 1, #off))) end
  for _, key in ipairs(are_off > 0 and off or {}) do
    read('ZCARD', key)
    keys_found[#keys_found + 1] = key
  end
  return keys_found
end

-- Whether there is nothing to drop: no task, no setting and no pause.
local function is_bare(s)
  if s.len > 0 or s.paused then return false end
  for field in pairs(s) do
    if string.sub(field, 1, 2) == 's-' then return false end
  end
  return true
end

function ops.drop(a)
  local n = 0
  for _, name in ipairs(rest(a)) do
    local q = open_whole(name)
    q.held_keys = held_keys(q)
  end
  for _, name in ipairs(rest(a)) do
    local q = open(name)
    if q.s.len > 0 then
      n = n + 1
      q.gone = q.gone + q.s.len
    end
    -- If there are very many holders, they keep the queue in their sets. A later look finds that nothing is held
    -- there.
    if #q.all_holders <= SLICE then
      for _, holder in ipairs(q.all_holders) do try('SREM', queues_held_by(holder), name) end
    end
    for i = 1, #q.held_keys, ARGS_MAX do call('UNLINK', unpack(q.held_keys, i, min(i + ARGS_MAX - 1, #q.held_keys))) end
    for _, part in ipairs(PARTS) do call('UNLINK', q.k .. ':' .. part) end
    leave_grave(q)
    if not is_bare(q.s) then
      local s = { len = 0, bytes = 0, head = 0, tail = 0, pushed = 0, finished = 0 }
      for _, field in ipairs(KEPT) do s[field] = q.s[field] end
      q.s, q.dirty = s, true
    end
  end
  return n
end

function ops.exists(a)
  local n = 0
  for _, name in ipairs(rest(a)) do n = n + min(read('HLEN', base(name) .. ':body'), 1) end
  return n
end

function ops.pause(a)
  local name = a.queue
  local q = open(name)
  settle(q)
  if not q.s.paused then
    q.s.paused, q.dirty = log, true
  end
  return 'done'
end

function ops.resume(a)
  local name = a.queue
  local q = open(name)
  settle(q)
  if q.s.paused then
    q.ready = read('ZCARD', q.k .. ':ready')
    q.s.paused, q.dirty, q.wake = nil, true, true
  end
  return 'done'
end

local WORDS = { expired = true, overflow = true, ['dead-letter'] = true }

-- Settings are names and values in turn; an empty value clears.
function ops.config(a)
  local name = a.queue
  local q, words = open(name), rest(a)
  if #words == 0 then return settings(q) end
  settle(q)
  for i = 1, #words, 2 do
    local value = words[i + 1]
    if value == '' then
      value = nil
    elseif not WORDS[words[i]] then
      value = tonumber(value)
    end
    if words[i] == 'dead-letter' and value ~= q.s['s-dead-letter'] then leave_grave(q) end
    q.s['s-' .. words[i]] = value
  end
  q.dirty, q.wake, q.is_set = true, true, true
  return settings(q)
end

function ops.explain(a)
  local name, word = a.queue, a.id
  local q = open_whole(name)
  settle(q)
  local id, t = claim(q, word)
  if not t then return false end
  local held = ''
  local most, leased = q.s['s-max-leased'], call('ZCARD', q.k .. ':leased')
  if q.s.paused then
    held = 'paused'
  elseif most and leased >= most then
    held = 'leased'
  end
  local about = { false, false, false, false }
  if t.st == 'R' then
    about[1] = call('ZRANK', q.k .. ':ready', id)
  elseif t.st == 'D' then
    about = { t.du, max(t.du - log, 0), false, false }
  elseif t.st == 'A' then
    about = { t.du, max(t.du - wall, 0), false, false }
  elseif t.st == 'L' then
    about = { t.at, t.dl and deadline(t) or false, t.ho or false, t.cx or 0 }
  else
    about[1] = t.di
  end
  return {
    id, t.st, t.n or 0, t.f or 0, t.l or 0, t.w or 0, tries_max(q, t), t.rs or false, held,
    q.s.paused or leased, most or 0, about[1], about[2], about[3], about[4],
  }
end

function ops.size() return read('ZCARD', OWN .. 'queues') end

-- Answers the next cursor, then name and counts of each queue.
function ops.queues(a)
  local cursor, count = a.cursor, a.count
  local names = read('ZRANGEBYSCORE', OWN .. 'queues', cursor, '+inf', 'WITHSCORES', 'LIMIT', 0, count)
  local out = { '0' }
  if #names == 2 * tonumber(count) then out[1] = string.format('%d', tonumber(names[#names]) + 1) end
  for i = 1, #names, 2 do
    local ready, delayed, leased, dead = counts({ k = base(names[i]) })
    out[#out + 1] = { names[i], ready, delayed, leased, dead }
  end
  return out
end

-- Lists the stores of these slot tags, which may have queues from now on. Answers some stores without recent pushes.
function ops.enlist(a)
  for _, tag in ipairs(rest(a)) do
    read('ZCARD', OWN .. 'seen')
    if not read('ZSCORE', OWN .. 'list', tag) then
      call('ZADD', OWN .. 'list', store.queues or 0, tag)
      store.queues, is_store_changed = (store.queues or 0) + 1, true
    end
    call('ZADD', OWN .. 'seen', log, tag)
  end
  return call('ZRANGEBYSCORE', OWN .. 'seen', '-inf', log - LISTED_MS, 'LIMIT', 0, STALE)
end

-- Answers the next cursor, then the slot tags of stores.
function ops.stores(a)
  local cursor, count = a.cursor, a.count
  local tags = read('ZRANGEBYSCORE', OWN .. 'list', cursor, '+inf', 'WITHSCORES', 'LIMIT', 0, count)
  local out = { '0' }
  if #tags == 2 * tonumber(count) then out[1] = integer(tonumber(tags[#tags]) + 1) end
  for i = 1, #tags, 2 do out[#out + 1] = tags[i] end
  return out
end

-- Removes stores that were found empty from the list. A push lists its store again long before it would be removed.
function ops.delist(a)
  read('ZCARD', OWN .. 'list')
  for _, tag in ipairs(rest(a)) do
    if (tonumber(read('ZSCORE', OWN .. 'seen', tag)) or 0) < log - LISTED_MS then
      call('ZREM', OWN .. 'list', tag)
      call('ZREM', OWN .. 'seen', tag)
    end
  end
  return 'done'
end

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

-- How many tasks of a queue a worker holds.
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

-- When to look next whether a home is silent or lost.
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

-- Applies what is due in these queues, as far as one call may; answers for each when to look again.
function ops.tick(a)
  local out = {}
  for i, name in ipairs(rest(a)) do
    -- Waiters for other queues must get their answers.
    local is_ours, row = attempt(function()
      local q = open(name)
      if i > 1 and slice_left <= 0 and (is_due(q) or are_sources_due(q)) then return { log, 0, log, wall } end
      settle(q)
      return next_look(q, settle_sources(q))
    end)
    out[i] = is_ours and row or { log + UNSOUND_MS, 0, log, wall }
  end
  return out
end

-- After a start or a failover, older leases and workers last a while longer.
local function notice_start()
  if store.epoch == args[5] then return end
  store.epoch, store.started, is_store_changed = args[5], log, true
end

-- Applies what is due for the whole store. A key of another type is retried later, and stops no operation.
local function keep_house(when, act)
  if attempt(act) then return end
  if store[when] and store[when] <= log then
    store[when], is_store_changed = log + UNSOUND_MS, true
  end
end

local function perform()
  local is_on_time, late_us, offset_us = begin()
  if not is_on_time then return { late_us, { '!', 'LATE', integer(offset_us) } } end
  notice_start()
  if args[1] ~= 'epoch' then
    keep_house('lost', end_lost_workers)
    keep_house('homes', end_lost_homes)
    keep_house('gone', end_gone)
  end
  local answer = ops[args[1]](ARGUMENTS[args[1]](args))
  finish()
  return { time_us, answer }
end

-- Executes an operation. If a key that it needs has a value of another type, the operation is refused and has changed
-- nothing; changes to other queues that were due before that stay.
local function run(its_keys, its_args)
  keys, args, time_us = its_keys, its_args, nil
  local is_done, answer = pcall(perform)
  if is_done then return answer end
  if type(answer) ~= 'table' or not answer.wrong then error(answer, 0) end
  if time_us then
    local is_dirty = false
    for _, q in ipairs(order_opened) do is_dirty = is_dirty or q.dirty end
    if is_dirty then finish() end
  end
  return { time_us or 0, { '!', 'WRONGTYPE', answer.wrong } }
end
