-- A queue in the keys of redis-work-queue; `run` at the end is what is called. Each call is told whether to look out for the old
-- layout (1 or empty), and says whether it did (0 or 1).
--
-- docs/redis-work-queue.md lists the keys. An item is there until it is completed; ids without one are ghosts, and removed
-- where they are met. Foreign clients put an item down before its id, so that a new one is never taken for a ghost.

local function open(name)
  local base = PREFIX .. name
  return {
    base = base, queue = base .. ':queue', processing = base .. ':processing', item = base .. ':item:', lease = base .. ':lease:',
  }
end

-- The key by which clients of the old layout show, if there is any.
local function old_lease(q, id)
  local key = q.base .. ':leased_by_session:' .. id
  if call('EXISTS', key) == 1 then return key end
end

local function old_list(q)
  local key = q.base .. ':cleaning'
  if call('TYPE', key).ok == 'list' then return key end
end

local function old_key(q)
  local key = old_list(q)
  if key then return key end
  for _, id in ipairs(call('LRANGE', q.processing, 0, PAGE - 1)) do
    key = old_lease(q, id)
    if key then return key end
  end
end

local function old(key) return { '!', 'OLD', key } end

local function is_leased(q, id) return call('EXISTS', q.lease .. id) == 1 end

local function exists(q, id) return call('EXISTS', q.item .. id) == 1 end

-- How often an id stands in a list: 0, 1 or 2 for more.
local function times(list, id) return #call('LPOS', list, id, 'COUNT', 2) end

-- Leases an id that stands at the left of processing, unless it is a ghost: one without an item, or another copy of an id
-- that somebody holds already.
local function lease(q, id, ms)
  local body = call('GET', q.item .. id)
  if not body then
    call('LREM', q.processing, 0, id)
    return
  end
  if not call('SET', q.lease .. id, SESSION, 'PX', ms, 'NX') then
    if times(q.processing, id) > 1 then
      call('LREM', q.processing, 1, id)
      return
    end
    call('SET', q.lease .. id, SESSION, 'PX', ms)
  end
  return body
end

-- Takes an id out of processing and puts it at an end of the queue. Answers whether there was something to give back.
local function give_back(q, id, push)
  local n = call('LREM', q.processing, 0, id)
  call('DEL', q.lease .. id)
  if n == 0 or not exists(q, id) then return false end
  call(push, q.queue, id)
  return true
end

local function state(q, id) return is_leased(q, id) and 'L' or 'R' end

-- Removes the ghosts among the ids that so many others will be handed out before. Answers the ids that were looked at, and
-- how many of them were removed.
local function prune(q, offset)
  local ids = call('LRANGE', q.queue, -offset - PAGE, -offset - 1)
  local met, removed = {}, 0
  for i = #ids, 1, -1 do
    local id, n = ids[i], 0
    if met[id] then
      n = call('LREM', q.queue, 1, id)
    elseif not exists(q, id) or (is_leased(q, id) and times(q.processing, id) > 0) then
      n = call('LREM', q.queue, -1, id)
    end
    met[id] = true
    removed = removed + n
  end
  return ids, removed
end

-- id, payload, …
function op.push(q, args)
  for i = 1, #args, 2 do
    if exists(q, args[i]) then return { '!', 'TAKEN' } end
  end
  local ids = {}
  for i = 1, #args, 2 do
    call('SET', q.item .. args[i], args[i + 1])
    call('LPUSH', q.queue, args[i])
    ids[#ids + 1] = args[i]
  end
  return ids
end

-- id, payload
function op.add(q, args)
  local id = args[1]
  if call('SETNX', q.item .. id, args[2]) == 0 then return { id, 0, state(q, id) } end
  call('LPUSH', q.queue, id)
  return { id, 1, 'R' }
end

-- count, lease, the queue that an id was moved from already (its place among the queues, or empty), that id, queues …
function op.pop(_, args)
  local count, ms, moved_from, moved = tonumber(args[1]), args[2], tonumber(args[3]), args[4]
  local queues, tasks, bytes, ghosts = {}, {}, 0, 0
  for i = 5, #args do queues[#queues + 1] = open(args[i]) end
  local function take(q, index, id)
    local body = lease(q, id, ms)
    if body then
      bytes = bytes + #body
      tasks[#tasks + 1] = task(index, id, body)
    else
      ghosts = ghosts + 1
    end
  end
  local function has_room(q)
    if bytes < REPLY_BYTES_FREE then return true end
    local next_id = call('LINDEX', q.queue, -1)
    return not next_id or bytes + call('STRLEN', q.item .. next_id) <= REPLY_BYTES_MAX
  end
  if moved_from then take(queues[moved_from + 1], moved_from, moved) end
  for i, q in ipairs(queues) do
    while #tasks < count and ghosts < SLICE and has_room(q) do
      local id = call('LMOVE', q.queue, q.processing, 'RIGHT', 'LEFT')
      if not id then break end
      take(q, i - 1, id)
    end
  end
  -- There is more behind so many ghosts, but whoever else waits for Redis goes first.
  if #tasks == 0 and ghosts >= SLICE then return 'again' end
  return tasks
end

-- leased or any, ids …
function op.ack(q, args)
  local finished = {}
  for i = 2, #args do
    local id = args[i]
    if args[1] ~= 'leased' or times(q.processing, id) > 0 then
      local is_first = call('DEL', q.item .. id) == 1
      local was_out = call('LREM', q.processing, 0, id) > 0
      call('DEL', q.lease .. id)
      if is_first then
        if not was_out then call('LREM', q.queue, 0, id) end
        finished[#finished + 1] = i - 2
      end
    end
  end
  return finished
end

-- id, milliseconds
function op.extend(q, args)
  local id, ms = args[1], args[2]
  if not exists(q, id) then return 'stale' end
  if call('PEXPIRE', q.lease .. id, ms) == 1 then return 'done' end
  -- It has run out, and nobody has noticed yet.
  if times(q.processing, id) == 0 then return 'stale' end
  call('SET', q.lease .. id, SESSION, 'PX', ms)
  return 'done'
end

-- id, end of the queue: F or B
op['return'] = function(q, args)
  return give_back(q, args[1], args[2] == 'F' and 'RPUSH' or 'LPUSH') and 'done' or 'stale'
end

-- ids that this session leased and that reached nobody
function op.undeliver(q, args)
  for i = #args, 1, -1 do
    if call('GET', q.lease .. args[i]) == SESSION then give_back(q, args[i], 'RPUSH') end
  end
  return 'done'
end

-- an id that was moved for someone who has left
function op.unmove(q, args)
  local id = args[1]
  if call('LREM', q.processing, 1, id) == 1 and exists(q, id) then call('RPUSH', q.queue, id) end
  return 'done'
end

-- ids …
function op.cancel(q, args)
  local n = 0
  for _, id in ipairs(args) do
    n = n + call('DEL', q.item .. id)
    call('LREM', q.processing, 0, id)
    call('LREM', q.queue, 0, id)
    call('DEL', q.lease .. id)
  end
  return n
end

function op.info(q)
  prune(q, 0)
  return { call('LLEN', q.queue), call('LLEN', q.processing) }
end

-- ready or leased, start, count
function op.inspect(q, args)
  return show(args[1] == 'leased' and q.processing or q.queue, args, function(id) return id, call('GET', q.item .. id) end)
end

local function length(q) return call('LLEN', q.queue) + call('LLEN', q.processing) end

-- queues …
function op.exists(_, args)
  local n = 0
  for _, name in ipairs(args) do
    if length(open(name)) > 0 then n = n + 1 end
  end
  return n
end

-- queues …; done in steps
function op.drop(_, args)
  local n, left = 0, SLICE
  for _, name in ipairs(args) do
    local q = open(name)
    for _, list in ipairs({ q.queue, q.processing }) do
      while left > 0 do
        local id = call('RPOP', list)
        if not id then break end
        call('DEL', q.item .. id, q.lease .. id)
        left = left - 1
        if length(q) == 0 then n = n + 1 end
      end
    end
    if length(q) > 0 then return { '1', n } end
  end
  return { '0', n }
end

-- The queue that a key belongs to, if it is the one by which that queue is counted: the list of ids that wait, or, where there
-- is none, the list of those that are being processed.
local function queue_of(key)
  if string.sub(key, 1, #PREFIX) ~= PREFIX then return end
  local name = string.match(key, '^(.*):queue$', #PREFIX + 1)
  if not name then
    name = string.match(key, '^(.*):processing$', #PREFIX + 1)
    if not name or call('EXISTS', PREFIX .. name .. ':queue') == 1 then return end
  end
  if call('TYPE', key).ok == 'list' then return name end
end

function layout.scan(cursor, count)
  local found = call('SCAN', cursor, 'COUNT', count)
  local names = {}
  for _, key in ipairs(found[2]) do names[#names + 1] = queue_of(key) end
  return found[1], names
end

function layout.counts(name)
  local q = open(name)
  return call('LLEN', q.queue), call('LLEN', q.processing)
end

-- how many at the right of processing to pass over, for how long nobody else may clean (or empty). Answers how many ids there
-- were, how many of them were ghosts, and those without a lease.
function op.look(q, args)
  local offset = tonumber(args[1])
  if is_locked(q.base .. ':sureq:cleaning', args[2]) then return 'busy' end
  local key = old_list(q)
  if key then return old(key) end
  local ids = call('LRANGE', q.processing, -offset - PAGE, -offset - 1)
  local ghosts, bare, met = 0, {}, {}
  for i = #ids, 1, -1 do
    local id = ids[i]
    if not is_leased(q, id) and not met[id] then
      met[id] = true
      key = old_lease(q, id)
      if key then return old(key) end
      if exists(q, id) then
        bare[#bare + 1] = id
      else
        ghosts = ghosts + call('LREM', q.processing, 0, id)
      end
    end
  end
  return { #ids, ghosts, bare }
end

-- ids that have been without a lease for long enough
function op.take_back(q, args)
  local n = 0
  for _, id in ipairs(args) do
    if not is_leased(q, id) and give_back(q, id, 'LPUSH') then n = n + 1 end
  end
  return n
end

-- how many at the right of the queue to pass over. Answers how many ids were ghosts, and the ids.
function op.prune(q, args)
  local ids, ghosts = prune(q, tonumber(args[1]))
  return { ghosts, ids }
end

-- cursor. Answers the next one, and ids of items.
function op.items(q, args)
  local found = call('SCAN', args[1], 'MATCH', beginning(q.item), 'COUNT', PAGE)
  local ids = {}
  for _, key in ipairs(found[2]) do ids[#ids + 1] = string.sub(key, #q.item + 1) end
  return { found[1], ids }
end

-- 1 to put them into the queue, or empty; ids of items that seem to be in no list. Answers which are.
function op.adopt(q, args)
  local orphans = {}
  for i = 2, #args do
    local id = args[i]
    local is_item = call('TYPE', q.item .. id).ok == 'string'
    if is_item and not is_leased(q, id) and times(q.processing, id) == 0 and times(q.queue, id) == 0 then
      orphans[#orphans + 1] = id
      if args[1] == '1' then call('LPUSH', q.queue, id) end
    end
  end
  return { orphans }
end

-- What these are about is their first argument.
local ABOUT_ONE = {
  push = true, add = true, ack = true, extend = true, ['return'] = true, undeliver = true, unmove = true, cancel = true,
  info = true, inspect = true, look = true, take_back = true, prune = true, items = true,
  adopt = true,
}

-- From which of their arguments on these name queues.
local FIRST_QUEUE = { pop = 5, exists = 1, drop = 1 }

local function run(_, given)
  begin(given)
  local looks = SETTING == '1'
  local name, args, q = given[1], {}, nil
  local first = 5
  if ABOUT_ONE[name] then
    q, first = open(given[5]), 6
  end
  for i = first, #given do args[#args + 1] = given[i] end
  if looks then
    local queues = { q }
    for i = FIRST_QUEUE[name] or #args + 1, #args do queues[#queues + 1] = open(args[i]) end
    for _, looked_at in ipairs(queues) do
      local key = old_key(looked_at)
      if key then
        if name == 'pop' and args[3] ~= '' then op.unmove(open(args[5 + args[3]]), { args[4] }) end
        return { 1, old(key) }
      end
    end
  end
  return { looks and 1 or 0, op[name](q, args) }
end
