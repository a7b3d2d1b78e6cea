-- A queue in the keys of redis-work-queue. Calls run the function `run` at the end. Each call says whether to look
-- for keys of the old layout (1 or empty), and the answer says whether the script looked (0 or 1).
--
-- docs/reference/redis-work-queue.md lists the keys. An item exists until it is completed. An id without an item is a
-- ghost, and is removed by the next operation that finds it. Foreign clients write an item before its id, so that a
-- new id is never a ghost.

local function open(name)
  local base = PREFIX .. name
  return {
    base = base, queue = base .. ':queue', processing = base .. ':processing', item = base .. ':item:', lease = base .. ':lease:',
  }
end

-- The key that shows clients of the old layout, if there is one.
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

local function old(key)
  return { '!', 'UNAVAILABLE', 'clients of redis-work-queue 0.1 use this queue (' .. key .. ' is theirs), and their leases and ours '
    .. 'do not see each other: let them empty it, or update them' }
end

-- Whether this key has a string.
local function is_there(name)
  local found = call('TYPE', name).ok
  if found ~= 'string' and found ~= 'none' then wrong_type(name) end
  return found == 'string'
end

local function is_leased(q, id) return is_there(q.lease .. id) end

local function exists(q, id) return is_there(q.item .. id) end

-- Checks that these ids, from an index on, have items and leases of the right type or none.
local function check_ids(q, ids, from)
  for i = from, #ids do
    check('string', q.item .. ids[i])
    check('string', q.lease .. ids[i])
  end
end

-- How often an id is in a list: 0, 1, or 2 for more.
local function times(list, id) return #call('LPOS', list, id, 'COUNT', 2) end

-- Leases an id that is next in the queue, or that was moved to the left of processing already. Returns its payload;
-- nothing for a ghost: an id without an item, or another copy of an id that is taken already.
local function lease(q, id, ms, is_moved)
  local body = read('GET', q.item .. id)
  local is_ghost = not body
  if body and not call('SET', q.lease .. id, SESSION, 'PX', ms, 'NX') then
    check('string', q.lease .. id)
    is_ghost = times(q.processing, id) > (is_moved and 1 or 0)
    if not is_ghost then call('SET', q.lease .. id, SESSION, 'PX', ms) end
  end
  if not is_ghost then
    if not is_moved then call('LMOVE', q.queue, q.processing, 'RIGHT', 'LEFT') end
    return body
  end
  if not is_moved then call('RPOP', q.queue) end
  if not body then
    call('LREM', q.processing, 0, id)
  elseif is_moved then
    call('LREM', q.processing, 1, id)
  end
end

-- Removes an id from processing and puts it at an end of the queue. Returns whether there was one.
local function requeue(q, id, push)
  local n = call('LREM', q.processing, 0, id)
  call('DEL', q.lease .. id)
  if n == 0 or not exists(q, id) then return false end
  call(push, q.queue, id)
  return true
end

local function state(q, id) return is_leased(q, id) and 'L' or 'R' end

-- Removes ghosts among the next ids of the queue, as many ids as given. Returns the ids that were looked at, and how
-- many of them were removed.
local function prune(q, offset)
  local ids = call('LRANGE', q.queue, -offset - PAGE, -offset - 1)
  local met, ghosts, removed = {}, {}, 0
  for i = #ids, 1, -1 do
    local id = ids[i]
    if met[id] then
      ghosts[#ghosts + 1] = { 1, id }
    elseif not exists(q, id) or (is_leased(q, id) and times(q.processing, id) > 0) then
      ghosts[#ghosts + 1] = { -1, id }
    end
    met[id] = true
  end
  for _, ghost in ipairs(ghosts) do removed = removed + call('LREM', q.queue, ghost[1], ghost[2]) end
  return ids, removed
end

-- id, payload, …
function op.push(q, args)
  for i = 1, #args, 2 do
    if exists(q, args[i]) then return id_taken() end
  end
  local ids = {}
  for i = 1, #args, 2 do
    read('LPUSH', q.queue, args[i])
    call('SET', q.item .. args[i], args[i + 1])
    ids[#ids + 1] = args[i]
  end
  return ids
end

-- id, payload
function op.add(q, args)
  local id = args[1]
  check('list', q.queue)
  if call('SETNX', q.item .. id, args[2]) == 0 then
    check('string', q.item .. id)
    return { id, 0, state(q, id) }
  end
  call('LPUSH', q.queue, id)
  return { id, 1, 'R' }
end

-- count, lease, the index of the queue from which an id was moved already (or empty), that id, queues …
function op.pop(_, args)
  local count, ms, moved_from, moved = tonumber(args[1]), args[2], tonumber(args[3]), args[4]
  local queues, tasks, bytes, ghosts = {}, {}, 0, 0
  for i = 5, #args do queues[#queues + 1] = open(args[i]) end
  -- Returns whether to continue.
  local function take(q, index, moved_id)
    local id = moved_id or read('LINDEX', q.queue, -1)
    if not id then return false end
    if not q.is_checked then check('list', q.processing) end
    q.is_checked = true
    if bytes >= REPLY_BYTES_FREE and bytes + check('string', q.item .. id) > REPLY_BYTES_MAX then return false end
    local body = lease(q, id, ms, moved_id)
    if body then
      bytes = bytes + #body
      tasks[#tasks + 1] = task(index, id, body)
    else
      ghosts = ghosts + 1
    end
    return true
  end
  if moved_from then take(queues[moved_from + 1], moved_from, moved) end
  for i, q in ipairs(queues) do
    while #tasks < count and ghosts < SLICE do
      local is_done, goes_on = pcall(take, q, i - 1)
      -- Tasks that were taken before a key of the wrong type are delivered.
      if not is_done and #tasks == 0 then error(goes_on, 0) end
      if not is_done then return tasks end
      if not goes_on then break end
    end
  end
  -- More may follow after this many ghosts, but other clients of Redis go first.
  if #tasks == 0 and ghosts >= SLICE then return 'again' end
  return tasks
end

-- leased or any, ids …
function op.ack(q, args)
  check_ids(q, args, 2)
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
  check_ids(q, { id }, 1)
  if not exists(q, id) then return 'stale' end
  if call('PEXPIRE', q.lease .. id, ms) == 1 then return 'done' end
  -- The lease has ended, and no cleaning has noticed it yet.
  if times(q.processing, id) == 0 then return 'stale' end
  call('SET', q.lease .. id, SESSION, 'PX', ms)
  return 'done'
end

-- id, end of the queue: F or B
op['return'] = function(q, args)
  check_ids(q, { args[1] }, 1)
  return requeue(q, args[1], args[2] == 'F' and 'RPUSH' or 'LPUSH') and 'done' or 'stale'
end

-- ids that this home leased and that did not reach their caller
function op.requeue(q, args)
  check_ids(q, args, 1)
  for i = #args, 1, -1 do
    if call('GET', q.lease .. args[i]) == SESSION then requeue(q, args[i], 'RPUSH') end
  end
  return 'done'
end

-- an id that was moved for a waiter that is gone
function op.unmove(q, args)
  local id = args[1]
  if call('LREM', q.processing, 1, id) == 1 and call('EXISTS', q.item .. id) == 1 then call('RPUSH', q.queue, id) end
  return 'done'
end

-- How many ids of lists a step of cancelling searches.
local SEARCHED_MAX = 200000

-- how many of the ids were cancelled by earlier steps, ids …; done in steps
function op.cancel(q, args)
  check_ids(q, args, 2)
  local n, from, last = 0, 2 + tonumber(args[1]), #args
  local len = call('LLEN', q.queue) + call('LLEN', q.processing)
  local upto = min(last, from + math.floor(SEARCHED_MAX / (len + 1)))
  for i = from, upto do
    local id = args[i]
    n = n + call('DEL', q.item .. id)
    call('LREM', q.processing, 0, id)
    call('LREM', q.queue, 0, id)
    call('DEL', q.lease .. id)
  end
  return { upto < last and string.format('%d', upto - 1) or '0', n }
end

function op.info(q)
  prune(q, 0)
  return { call('LLEN', q.queue), call('LLEN', q.processing) }
end

-- ready or leased, start, count, how many bytes of payloads, cursor; done in steps
function op.inspect(q, args)
  return show(args[1] == 'leased' and q.processing or q.queue, args, function(id) return id, read('GET', q.item .. id) end)
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
  local n, left, looked = 0, SLICE, 0
  for _, name in ipairs(args) do
    local q = open(name)
    for _, list in ipairs({ q.queue, q.processing }) do
      if looked < SLICE then
        local ids = call('LRANGE', list, -(SLICE - looked), -1)
        check_ids(q, ids, 1)
        looked = looked + #ids
      end
    end
  end
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

-- The queue of a key, if the queue is counted by this key: the list of waiting ids, or without one the list of
-- processed ids.
local function queue_of(key)
  if string.sub(key, 1, #PREFIX) ~= PREFIX then return end
  local name = string.match(key, '^(.*):queue$', #PREFIX + 1)
  if not name then
    name = string.match(key, '^(.*):processing$', #PREFIX + 1)
    if not name or call('EXISTS', PREFIX .. name .. ':queue') == 1 then return end
  end
  if call('TYPE', key).ok == 'list' then return name end
end

-- The queue of the key of an item, unless a list shows it already. A name or an id may contain `:item:` too. If no
-- list shows where to split, the last one counts, since ids usually do not contain it.
local function queue_of_item(key)
  local name, at = nil, #PREFIX + 1
  while true do
    local from, to = string.find(key, ':item:', at, true)
    if not from then return name end
    name, at = string.sub(key, #PREFIX + 1, from - 1), to
    local q = open(name)
    if call('EXISTS', q.queue, q.processing) > 0 then return end
  end
end

function layout.scan(cursor, count)
  local found = call('SCAN', cursor, 'COUNT', count)
  local names = {}
  for _, key in ipairs(found[2]) do names[#names + 1] = queue_of(key) end
  return found[1], names
end

function layout.counts(name)
  local q = open(name)
  return length_or_none('list', q.queue), length_or_none('list', q.processing)
end

-- how many ids at the right of processing to skip, for how many milliseconds to lock cleaning (or empty). Answers how
-- many ids there were, how many of them were ghosts, and those without a lease.
function op.look(q, args)
  local offset = tonumber(args[1])
  if is_locked(q.base .. ':sureq:cleaning', args[2]) then return 'busy' end
  local key = old_list(q)
  if key then return old(key) end
  local ids = call('LRANGE', q.processing, -offset - PAGE, -offset - 1)
  local ghosts, bare, without, met = 0, {}, {}, {}
  for i = #ids, 1, -1 do
    local id = ids[i]
    if not is_leased(q, id) and not met[id] then
      met[id] = true
      key = old_lease(q, id)
      if key then return old(key) end
      local kind = exists(q, id) and bare or without
      kind[#kind + 1] = id
    end
  end
  for _, id in ipairs(without) do ghosts = ghosts + call('LREM', q.processing, 0, id) end
  return { #ids, ghosts, bare }
end

-- ids that have been without a lease for long enough
function op.requeue_unleased(q, args)
  check_ids(q, args, 1)
  local n = 0
  for _, id in ipairs(args) do
    if not is_leased(q, id) and requeue(q, id, 'LPUSH') then n = n + 1 end
  end
  return n
end

-- how many ids at the right of the queue to skip. Answers how many ids were ghosts, and the ids.
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

-- cursor. Answers the next one, and queues that have items and no list.
function op.unlisted(_, args)
  local found = call('SCAN', args[1], 'MATCH', beginning(PREFIX), 'COUNT', SLICE, 'TYPE', 'string')
  local names = {}
  for _, key in ipairs(found[2]) do names[#names + 1] = queue_of_item(key) end
  return { found[1], names }
end

-- 1 to add them to the queue, or empty; ids of items that seem to be in no list. Answers those that are in none.
function op.adopt(q, args)
  local orphans = {}
  for i = 2, #args do
    local id = args[i]
    local is_item = call('TYPE', q.item .. id).ok == 'string'
    if is_item and not is_leased(q, id) and times(q.processing, id) == 0 and times(q.queue, id) == 0 then
      orphans[#orphans + 1] = id
    end
  end
  if args[1] == '1' then
    for _, id in ipairs(orphans) do call('LPUSH', q.queue, id) end
  end
  return { orphans }
end

-- Operations whose first argument is their queue.
local ABOUT_ONE = {
  push = true, add = true, ack = true, extend = true, ['return'] = true, requeue = true, unmove = true, cancel = true,
  info = true, inspect = true, look = true, requeue_unleased = true, prune = true, items = true,
  adopt = true,
}

-- Operations whose arguments from this one on are queues.
local FIRST_QUEUE = { pop = 5, exists = 1, drop = 1 }

-- Frequent operations, which check no more keys than they need.
local CHECKS_ITSELF = { push = true, add = true, pop = true }

local function run(_, given)
  begin(given)
  local looks = SETTING == '1'
  local name, args, q = given[1], {}, nil
  local first = 5
  if ABOUT_ONE[name] then
    q, first = open(given[5]), 6
  end
  for i = first, #given do args[#args + 1] = given[i] end
  local answer = guarded(function()
    local queues = { q }
    for i = FIRST_QUEUE[name] or #args + 1, #args do queues[#queues + 1] = open(args[i]) end
    for _, one in ipairs(queues) do
      if looks or not CHECKS_ITSELF[name] then
        check('list', one.queue)
        check('list', one.processing)
      end
      local key = looks and old_key(one)
      if key then return old(key) end
    end
    return op[name](q, args)
  end)
  -- An id that was moved for a refused pop is moved back.
  if name == 'pop' and args[3] ~= '' and answer[1] == '!' then op.unmove(open(args[5 + args[3]]), { args[4] }) end
  return { looks and 1 or 0, answer }
end
