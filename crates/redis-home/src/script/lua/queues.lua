-- Queues: their settings, counts, order and place in the list of queues, and the messages that wake waiters.

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
  for i = 1, #ids, MESSAGE_IDS do tell(q, kind, table.concat(ids, ' ', i, min(i + MESSAGE_IDS - 1, #ids))) end
end

local function has_settings(s)
  if s.paused then return true end
  for field in pairs(s) do
    if string.sub(field, 1, 2) == 's-' then return true end
  end
  return false
end

-- Milliseconds until the next deadline of a queue; nil if its waiters already know of one that early.
local function sooner_ms(q)
  local s, ms = q.s, nil
  if s.next and not (q.next_before and q.next_before <= s.next) then ms = max(s.next - log, 0) end
  if s.appointed and not (q.appointed_before and q.appointed_before <= s.appointed) then
    local left = min(max(s.appointed - wall, 0), WALL_POLL_MS)
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

