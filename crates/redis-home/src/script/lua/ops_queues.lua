-- Operations that list tasks, and those on queues, their settings and their stores.

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

