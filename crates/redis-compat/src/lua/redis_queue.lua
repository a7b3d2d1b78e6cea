-- A queue in the keys of redis-queue. Calls run the function `run` at the end. Each call reports the number of
-- seconds after which a taken task is late.
--
-- docs/reference/redis-redis-queue.md lists the keys. A taken task stays in the list, after the others and with the
-- time at which it was taken. It is done when its id is in a set; its entry is then removed by the next operation
-- that finds it.

local NOW

local function open(name)
  local list = PREFIX .. name
  return { list = list, done = list .. ':done', data = list .. ':data:' }
end

local function check_queue(q)
  check('list', q.list)
  check('set', q.done)
end

-- Checks that these ids, from an index on, have bodies or nothing.
local function check_bodies(q, ids, from)
  for i = from, #ids do check('string', q.data .. ids[i]) end
end

-- The id of an entry, and when it was taken. An unreadable time counts as long ago.
local function parse(entry)
  local id, at = string.match(entry, '^([^|]*)|([^|]*)')
  if not id then return entry end
  return id, tonumber(at) or 0
end

local function is_late(at) return NOW - at > tonumber(SETTING) end

-- The state of an entry: fresh, late, taken or done.
local function state(q, entry)
  local id, at = parse(entry)
  if not at then return 'fresh', id end
  if call('SISMEMBER', q.done, id) == 1 then return 'done', id end
  return is_late(at) and 'late' or 'taken', id, at
end

-- The number of taken entries at the right of the list before the first other entry; nil if all of `len` are taken.
local function ahead(q, len)
  local size = 1
  local offset = 0
  while offset < len do
    local entries = call('LRANGE', q.list, -min(offset + size, len), -offset - 1)
    if #entries == 0 then return end
    for i = #entries, 1, -1 do
      if state(q, entries[i]) ~= 'taken' then return offset + #entries - i end
    end
    offset, size = offset + #entries, PAGE
  end
end

-- Removes the records of the task of a removed entry.
local function drop_done(q, id)
  call('SREM', q.done, id)
  call('DEL', q.data .. id)
end

-- Searches from the newest entry on for a taken one with this id.
local function find_taken(q, wanted)
  local offset = 0
  while true do
    local entries = call('LRANGE', q.list, offset, offset + PAGE - 1)
    for _, entry in ipairs(entries) do
      local id, at = parse(entry)
      if at and id == wanted then return entry end
    end
    if #entries < PAGE then return end
    offset = offset + PAGE
  end
end

-- how long a body is kept (or empty), id, payload, …
function op.push(q, args)
  local ids = {}
  for i = 2, #args, 2 do
    if call('EXISTS', q.data .. args[i]) == 1 then return id_taken() end
  end
  for i = 2, #args, 2 do
    call('SET', q.data .. args[i], args[i + 1])
    if args[1] ~= '' then call('EXPIRE', q.data .. args[i], args[1]) end
    call('LPUSH', q.list, args[i])
    ids[#ids + 1] = args[i]
  end
  return ids
end

-- how long a body is kept (or empty), id, payload; or id alone
function op.add(q, args)
  if #args == 3 then
    local pushed = op.push(q, args)
    if pushed[1] == '!' then return pushed end
    return { args[2], 1, 'R' }
  end
  check_bodies(q, args, 1)
  call('LPUSH', q.list, args[1])
  return { args[1], 1, 'R' }
end

-- count, queues …
function op.pop(_, args)
  local count, tasks, bytes, steps = tonumber(args[1]), {}, 0, 0
  for i = 2, #args do
    local q = open(args[i])
    local len = call('LLEN', q.list)
    while #tasks < count and steps < SLICE do
      local n = ahead(q, len)
      if not n then break end
      local what, id = state(q, call('LINDEX', q.list, -n - 1))
      local is_free = what ~= 'done'
      -- Tasks that were taken before a key of the wrong type are delivered.
      local is_right, size = pcall(check, 'string', q.data .. id)
      if not is_right and #tasks == 0 then error(size, 0) end
      if not is_right or (is_free and bytes >= REPLY_BYTES_FREE and bytes + size > REPLY_BYTES_MAX) then return tasks end
      for _ = 1, n do call('LMOVE', q.list, q.list, 'RIGHT', 'LEFT') end
      call('RPOP', q.list)
      len, steps = len - n - 1, steps + n + 1
      if is_free then
        call('LPUSH', q.list, id .. '|' .. NOW)
        -- An existing mark is about an earlier task with this id.
        call('SREM', q.done, id)
        local body = call('GET', q.data .. id) or ''
        bytes = bytes + #body
        tasks[#tasks + 1] = task(i - 2, id, body)
      else
        drop_done(q, id)
      end
    end
  end
  -- More may follow after this many entries, but other clients of Redis go first.
  if #tasks == 0 and steps >= SLICE then return 'again' end
  return tasks
end

-- The newest taken entry of each of these ids, in one walk from the newest on.
local function find_all_taken(q, ids)
  local found, left, wanted, offset = {}, 0, {}, 0
  for _, id in ipairs(ids) do
    if not wanted[id] then
      wanted[id], left = true, left + 1
    end
  end
  while left > 0 do
    local entries = call('LRANGE', q.list, offset, offset + PAGE - 1)
    for _, entry in ipairs(entries) do
      local id, at = parse(entry)
      if at and wanted[id] then
        found[id], wanted[id], left = entry, nil, left - 1
      end
    end
    if #entries < PAGE then break end
    offset = offset + PAGE
  end
  return found
end

-- ids …
function op.ack(q, args)
  check_bodies(q, args, 1)
  local finished, taken, is_met = {}, find_all_taken(q, args), {}
  for i, id in ipairs(args) do
    local entry = taken[id]
    -- An id that is named twice may be in the list twice.
    if is_met[id] then entry = find_taken(q, id) end
    is_met[id] = true
    local was_done = call('SREM', q.done, id) == 1
    local had_body = call('DEL', q.data .. id) == 1
    local is_first = had_body
    if entry then
      call('LREM', q.list, 1, entry)
      is_first = not was_done
    else
      -- A foreign client may be moving the entry, and add it again.
      call('SADD', q.done, id)
    end
    if is_first then finished[#finished + 1] = i - 1 end
  end
  return finished
end

-- Adds a taken task at an end of the list, as if it had not been taken.
local function requeue(q, id, push)
  local entry = find_taken(q, id)
  if not entry then return 'stale' end
  call('LREM', q.list, 1, entry)
  if call('SISMEMBER', q.done, id) == 1 then
    drop_done(q, id)
    return 'stale'
  end
  call(push, q.list, id)
  return 'done'
end

-- id, end of the queue: F or B
op['return'] = function(q, args)
  check_bodies(q, { args[1] }, 1)
  return requeue(q, args[1], args[2] == 'F' and 'RPUSH' or 'LPUSH')
end

-- ids that did not reach their caller
function op.requeue(q, args)
  check_bodies(q, args, 1)
  for i = #args, 1, -1 do requeue(q, args[i], 'RPUSH') end
  return 'done'
end

-- Visits some entries with their states, from the right, after this many others; `visit` returns true at one that is
-- left to the next step. Returns how many entries to skip then; nothing at the end of the list.
local function some(q, offset, visit)
  local entries = call('LRANGE', q.list, -offset - SLICE, -offset - 1)
  for i = #entries, 1, -1 do
    if visit(entries[i], state(q, entries[i])) then return offset + #entries - i end
  end
  if #entries == SLICE then return offset + SLICE end
end

-- Visits every entry.
local function each(q, visit)
  local offset = 0
  repeat offset = some(q, offset, visit) until not offset
end

-- ids …
function op.cancel(q, args)
  check_bodies(q, args, 1)
  local wanted, found, n = {}, {}, 0
  for _, id in ipairs(args) do wanted[id] = true end
  each(q, function(entry, what, id)
    if wanted[id] then
      found[#found + 1] = entry
      if what ~= 'done' then n = n + 1 end
    end
  end)
  for _, entry in ipairs(found) do call('LREM', q.list, 1, entry) end
  for _, id in ipairs(args) do drop_done(q, id) end
  return n
end

-- Counts ready and taken tasks among some entries; returns also how many entries to skip in the next step.
local function count_some(q, offset)
  local ready, leased = 0, 0
  local after = some(q, offset, function(_, what)
    if what == 'taken' then leased = leased + 1 elseif what ~= 'done' then ready = ready + 1 end
  end)
  return ready, leased, after
end

-- cursor; done in steps
function op.info(q, args)
  local ready, leased, after = count_some(q, tonumber(args[1]))
  return { after and string.format('%d', after) or '0', ready, leased }
end

-- No queue is longer.
local LENGTH_MAX = 1000000000000

-- ready or leased, start, count, how many bytes of payloads, cursor; done in steps. The cursor says whether they count
-- such tasks, for a start from the end, or show them; then how many entries to skip, how many tasks, and how many are
-- left to show.
function op.inspect(q, args)
  local room = tonumber(args[4])
  local what_for, offset, skip, left = string.match(args[5], '^(%a+):(%d+):(-?%d+):(%d+)$')
  if what_for then
    offset, skip, left = tonumber(offset), tonumber(skip), tonumber(left)
  else
    offset, skip, left = 0, max(min(tonumber(args[2]), LENGTH_MAX), -LENGTH_MAX), tonumber(args[3])
    what_for = skip < 0 and 'count' or 'show'
  end
  local function cursor() return string.format('%s:%d:%d:%d', what_for, offset, skip, left) end
  if what_for == 'count' then
    local ready, leased, after = count_some(q, offset)
    skip = skip + (args[1] == 'leased' and leased or ready)
    if after then
      offset = after
    else
      what_for, offset, skip = 'show', 0, max(skip, 0)
    end
    return { cursor() }
  end
  local shown, bytes = { '0' }, 0
  local after = some(q, offset, function(_, what, id)
    if left == 0 then return true end
    if what == 'done' or (what == 'taken') ~= (args[1] == 'leased') then return false end
    if skip > 0 then
      skip = skip - 1
      return false
    end
    local body = read('GET', q.data .. id) or ''
    bytes = bytes + #body
    if bytes > room and #shown > 1 then return true end
    shown[#shown + 1], left = task(0, id, body), left - 1
  end)
  if after and left > 0 then
    offset = after
    shown[1] = cursor()
  end
  return shown
end

-- queues …
function op.exists(_, args)
  local n = 0
  for _, name in ipairs(args) do
    if call('LLEN', open(name).list) > 0 then n = n + 1 end
  end
  return n
end

-- queues …; done in steps
function op.drop(_, args)
  local n, left, looked = 0, SLICE, 0
  for _, name in ipairs(args) do
    local q = open(name)
    local entries = looked < SLICE and call('LRANGE', q.list, -(SLICE - looked), -1) or {}
    for i, entry in ipairs(entries) do entries[i] = parse(entry) end
    check_bodies(q, entries, 1)
    looked = looked + #entries
  end
  for _, name in ipairs(args) do
    local q = open(name)
    local was_there = call('LLEN', q.list) > 0
    while left > 0 do
      local entry = call('RPOP', q.list)
      if not entry then break end
      drop_done(q, (parse(entry)))
      left = left - 1
    end
    if call('LLEN', q.list) > 0 then return { '1', n } end
    if was_there then
      call('UNLINK', q.done)
      n = n + 1
    end
  end
  return { '0', n }
end

-- How many entries one page of the list of queues may still count.
local countable

-- Every list is a queue here.
function layout.scan(cursor, count)
  countable = SLICE
  local found = call('SCAN', cursor, 'MATCH', beginning(PREFIX), 'COUNT', count, 'TYPE', 'list')
  local names = {}
  for i, list in ipairs(found[2]) do names[i] = string.sub(list, #PREFIX + 1) end
  return found[1], names
end

function layout.counts(name)
  local q = open(name)
  local done = call('TYPE', q.done).ok
  local len = call('LLEN', q.list)
  if done ~= 'set' and done ~= 'none' then return len, 0 end
  if len > countable then return false, false end
  countable = countable - len
  local ready, leased = count_some(q, 0)
  return ready, leased
end

-- queues …; answers for each when its next task will be late, and the time now
function op.tick(_, args)
  local rows = {}
  local time = call('TIME')
  for i, name in ipairs(args) do
    local first
    each(open(name), function(_, what, _, at)
      if what == 'taken' and (not first or at < first) then first = at end
    end)
    local late = first and (first + tonumber(SETTING) + 1) * 1000 or 0
    rows[i] = { late, 0, time[1] * 1000 + math.floor(time[2] / 1000), 0 }
  end
  return rows
end

-- cursor. Answers the next one, and the queues that have done tasks or bodies, according to their keys.
function op.used(_, args)
  local found = call('SCAN', args[1], 'MATCH', beginning(PREFIX), 'COUNT', SLICE)
  local names = {}
  for _, one in ipairs(found[2]) do
    local name, kind = string.match(one, '^(.*):done$', #PREFIX + 1), 'set'
    if not name then
      name, kind = string.match(one, '^(.*):data:[^:]*$', #PREFIX + 1), 'string'
    end
    if name and call('TYPE', one).ok == kind then names[#names + 1] = name end
  end
  return { found[1], names }
end

-- how many entries at the right of the list to skip. Removes done tasks; answers how many entries there were, how
-- many of them were removed, and the ids of the others.
function op.look(q, args)
  local offset = tonumber(args[1])
  local entries = call('LRANGE', q.list, -offset - PAGE, -offset - 1)
  local removed, ids, done = 0, {}, {}
  for i = #entries, 1, -1 do
    local what, id = state(q, entries[i])
    if what == 'done' then
      check_bodies(q, { id }, 1)
      done[#done + 1] = { entries[i], id }
    else
      ids[#ids + 1] = id
    end
  end
  for _, entry in ipairs(done) do
    removed = removed + call('LREM', q.list, -1, entry[1])
    drop_done(q, entry[2])
  end
  return { #entries, removed, ids }
end

-- cursor. Answers the next one, and ids that are marked as done.
function op.marks(q, args) return call('SSCAN', q.done, args[1], 'COUNT', SLICE) end

-- cursor. Answers the next one, and ids that have a body.
function op.bodies(q, args)
  local found = call('SCAN', args[1], 'MATCH', beginning(q.data), 'COUNT', PAGE, 'TYPE', 'string')
  local ids = {}
  for i, body in ipairs(found[2]) do ids[i] = string.sub(body, #q.data + 1) end
  return { found[1], ids }
end

-- ids that are in no list: one with a body that is not done is a lost task. Answers how many were requeued, and how
-- many marks and bodies of done tasks were removed.
function op.adopt(q, args)
  check_bodies(q, args, 1)
  local back, removed = 0, 0
  for _, id in ipairs(args) do
    if call('SISMEMBER', q.done, id) == 1 then
      drop_done(q, id)
      removed = removed + 1
    elseif call('EXISTS', q.data .. id) == 1 and not string.find(id, '|', 1, true) then
      call('LPUSH', q.list, id)
      back = back + 1
    end
  end
  return { back, removed }
end

-- Operations that are not about one queue.
local ABOUT_MANY = {
  pop = true, exists = true, drop = true, queues = true, size = true, tick = true, used = true,
}

-- Operations whose arguments from this one on are queues.
local FIRST_QUEUE = { pop = 2, exists = 1, drop = 1 }

local function run(_, given)
  begin(given)
  NOW = tonumber(call('TIME')[1])
  local name, args, q = given[1], {}, nil
  local first = 5
  if not ABOUT_MANY[name] then
    q, first = open(given[5]), 6
  end
  for i = first, #given do args[#args + 1] = given[i] end
  local answer = guarded(function()
    if q then check_queue(q) end
    for i = FIRST_QUEUE[name] or #args + 1, #args do check_queue(open(args[i])) end
    return op[name](q, args)
  end)
  return { 0, answer }
end
