-- Queues in the keys of Worqr. Calls run the function `run` at the end.
--
-- docs/reference/redis-worqr.md lists the keys. Worqr's own clients record which tasks of a queue are being worked
-- on, but not by which worker. So sureq has additional records of the worker of each process. A process without such
-- a record is held by an unknown foreign worker.

local function key(kind, name) return PREFIX .. ':' .. kind .. ':' .. name end

local function queue_key(name) return key('queues', name) end

local function process_key(id) return key('processes', id) end

local function working_key(name) return key('workingProcesses', name) end

local function own(name) return PREFIX .. ':sureq:' .. name end

local function held_key(worker) return own('held:' .. worker) end

-- Marks that sureq has just cancelled a payload of this queue, so that nothing is left to do about the published
-- cancel.
local function told_key(queue, hash) return own('told:' .. hash .. ':' .. queue) end

-- The queue of a process, as Worqr reads it from its id.
local function queue_of(id) return string.match(id, '^(.*)_') or '' end

-- For a user that may not publish, everything else is done anyway.
local function tell(queue, kind, text) redis.pcall('PUBLISH', PREFIX .. '_' .. queue .. '_' .. kind, text) end

local function tell_work(queue, n)
  if n > 0 then tell(queue, 'work', n) end
end

local function is_ours(worker) return read('HEXISTS', own('workers'), worker) == 1 end

local function is_alive(worker)
  return call('EXISTS', key('workerTimers', worker)) == 1 or call('SISMEMBER', PREFIX .. ':permanentWorkers', worker) == 1
end

local GONE = { '!', 'GONE' }

-- These functions check that keys have the right type or do not exist, before anything is written.

local function check_queue(queue)
  check('list', queue_key(queue))
  check('set', working_key(queue))
end

-- Processes, and the records of those that workers of sureq hold.
local function check_processes(ids)
  check('hash', own('holders'))
  check('set', own('cancelled'))
  for _, id in ipairs(ids) do
    check('list', process_key(id))
    local worker = call('HGET', own('holders'), id)
    if worker then check('zset', held_key(worker)) end
  end
end

-- All keys of a queue. Its running processes may belong to another queue.
local function check_whole_queue(queue)
  check_queue(queue)
  check_processes(call('SMEMBERS', working_key(queue)))
end

local function check_registry()
  for _, set in ipairs({ ':workers', ':expiringWorkers', ':permanentWorkers' }) do check('set', PREFIX .. set) end
  check('hash', own('workers'))
  check('hash', own('holders'))
  check('set', own('cancelled'))
end

-- A worker, and all its tasks.
local function check_worker(worker)
  check_registry()
  check('string', key('workerTimers', worker))
  check('set', key('workingQueues', worker))
  local ids = read('ZRANGE', held_key(worker), 0, -1)
  check_processes(ids)
  for _, id in ipairs(ids) do check_queue(queue_of(id)) end
end

-- A foreign worker, and all running processes of its queues.
local function check_foreign(worker)
  check_worker(worker)
  for _, queue in ipairs(call('SMEMBERS', key('workingQueues', worker))) do check_whole_queue(queue) end
end

-- Removes all records of a process; returns the worker of sureq that held it.
local function forget(id, holder)
  local worker = holder
  if worker == nil then worker = call('HGET', own('holders'), id) end
  if worker then
    call('HDEL', own('holders'), id)
    call('ZREM', held_key(worker), id)
    call('SREM', own('cancelled'), id)
  end
  call('SREM', working_key(queue_of(id)), id)
  return worker
end

-- Ends a process, and puts its task at an end of the queue unless it was cancelled. Returns the outcome.
local function requeue(id, side)
  local is_off = call('SISMEMBER', own('cancelled'), id) == 1
  local n = 0
  if is_off then
    n = call('DEL', process_key(id))
  else
    while call('LMOVE', process_key(id), queue_key(queue_of(id)), 'RIGHT', side) do n = n + 1 end
  end
  forget(id)
  if n == 0 then return 'stale' end
  return is_off and 'cancelled' or 'done'
end

-- Requeues the tasks that a worker of sureq holds, of one queue or of all, so that the task taken first is delivered
-- first. Counts the requeued tasks per queue.
local function requeue_held(worker, only, back)
  local ids = call('ZREVRANGE', held_key(worker), 0, -1)
  for _, id in ipairs(ids) do
    local queue = queue_of(id)
    if (not only or queue == only) and requeue(id, 'RIGHT') == 'done' then back[queue] = (back[queue] or 0) + 1 end
  end
end

-- The queues on which live foreign workers work, as keys of a table; one worker may be left out.
local function foreign_queues(except)
  local busy = {}
  for _, worker in ipairs(call('SMEMBERS', PREFIX .. ':workers')) do
    if worker ~= except and not is_ours(worker) and is_alive(worker) then
      for _, queue in ipairs(read('SMEMBERS', key('workingQueues', worker))) do busy[queue] = true end
    end
  end
  return busy
end

-- Requeues the tasks of a queue that no worker of sureq holds, unless the queue is busy: then it is unknown which of
-- them belong to a dead worker. Returns how many ids had no process.
local function requeue_unheld(queue, busy, back)
  if busy[queue] then return 0 end
  local ghosts = 0
  for _, id in ipairs(call('SMEMBERS', working_key(queue))) do
    if call('HEXISTS', own('holders'), id) == 0 then
      if queue_of(id) ~= queue then
        ghosts = ghosts + call('SREM', working_key(queue), id)
      elseif requeue(id, 'RIGHT') == 'done' then
        back[queue] = (back[queue] or 0) + 1
      else
        ghosts = ghosts + 1
      end
    end
  end
  return ghosts
end

-- Removes a worker from every set, with its timer and its queues.
local function unregister(worker)
  for _, set in ipairs({ ':workers', ':expiringWorkers', ':permanentWorkers' }) do call('SREM', PREFIX .. set, worker) end
  call('DEL', key('workerTimers', worker), key('workingQueues', worker))
  call('HDEL', own('workers'), worker)
end

-- Ends a worker of sureq. Counts the requeued tasks per queue. Its keys have been checked.
local function end_own(worker, back)
  requeue_held(worker, nil, back)
  unregister(worker)
end

-- Ends a dead foreign worker; returns whether it is gone. It stays registered for its busy queues: Worqr's own
-- cleanup requeues those tasks, and finds them only through a registered worker.
local function end_foreign(worker, busy, back)
  local is_needed = false
  for _, queue in ipairs(call('SMEMBERS', key('workingQueues', worker))) do
    if busy[queue] then
      is_needed = true
    else
      requeue_unheld(queue, busy, back)
      call('SREM', key('workingQueues', worker), queue)
    end
  end
  if not is_needed then unregister(worker) end
  return not is_needed
end

-- Ends a foreign worker that may be alive. Without a timer, Worqr's own cleanup considers it dead too.
local function fail_foreign(worker, back)
  check_foreign(worker)
  local busy = foreign_queues(worker)
  call('DEL', key('workerTimers', worker))
  call('SREM', PREFIX .. ':permanentWorkers', worker)
  if call('SISMEMBER', PREFIX .. ':workers', worker) == 1 then call('SADD', PREFIX .. ':expiringWorkers', worker) end
  end_foreign(worker, busy, back)
end

-- Ends a foreign worker whose name a worker of sureq takes over. Its tasks are found only through its registration,
-- which continues under another name.
local function displace_foreign(worker, back)
  check_foreign(worker)
  if call('EXISTS', key('workingQueues', worker)) == 0 then return end
  local former = worker .. '#former'
  check('set', key('workingQueues', former))
  local busy = foreign_queues(worker)
  call('SUNIONSTORE', key('workingQueues', former), key('workingQueues', former), key('workingQueues', worker))
  unregister(worker)
  call('SADD', PREFIX .. ':workers', former)
  call('SADD', PREFIX .. ':expiringWorkers', former)
  end_foreign(former, busy, back)
end

-- Publishes the requeued tasks; returns their number.
local function tell_back(back)
  local sum = 0
  for queue, n in pairs(back) do
    tell_work(queue, n)
    sum = sum + n
  end
  return sum
end

-- payloads …; they have no ids until they are taken
function op.push(queue, args)
  local ids = {}
  for i, payload in ipairs(args) do
    read('LPUSH', queue_key(queue), payload)
    ids[i] = false
  end
  tell_work(queue, #args)
  return ids
end

-- payload, its hash if it is to be the only one (or empty)
function op.add(queue, args)
  local payload, hash = args[1], args[2]
  check('list', queue_key(queue))
  if hash ~= '' then check('string', key('uniqueTasks', hash)) end
  if hash ~= '' and not call('SET', key('uniqueTasks', hash), ' ', 'NX') then
    return { false, 0, call('LPOS', queue_key(queue), payload) and 'R' or 'L' }
  end
  call('LPUSH', queue_key(queue), payload)
  tell_work(queue, 1)
  return { false, 1, 'R' }
end

-- The next unused id with this beginning.
local function next_id(queue, head, tail)
  local id
  repeat
    tail = (tail + 1) % 281474976710656
    id = queue .. '_' .. head .. string.format('%012x', tail)
  until call('EXISTS', process_key(id)) == 0
  return id, tail
end

-- count, worker, the beginning of new ids, the number from which their endings are counted, queues …
function op.pop(_, args)
  local count, worker, head, tail = tonumber(args[1]), args[2], args[3], tonumber(args[4])
  if not is_ours(worker) or (check('string', key('workerTimers', worker)) == 0 and not is_alive(worker)) then return GONE end
  check('set', key('workingQueues', worker))
  check('hash', own('holders'))
  for i = 5, #args do check_queue(args[i]) end
  local tasks, bytes = {}, 0
  local last = read('ZREVRANGE', held_key(worker), 0, 0, 'WITHSCORES')
  local place = tonumber(last[2] or 0)
  local function has_room(queue)
    if bytes < REPLY_BYTES_FREE then return true end
    local following = call('LINDEX', queue_key(queue), -1)
    return not following or bytes + #following <= REPLY_BYTES_MAX
  end
  for i = 5, #args do
    local queue, id = args[i], nil
    while #tasks < count and has_room(queue) do
      id, tail = next_id(queue, head, tail)
      local body = call('LMOVE', queue_key(queue), process_key(id), 'RIGHT', 'LEFT')
      if not body then break end
      place = place + 1
      call('SADD', working_key(queue), id)
      call('SADD', key('workingQueues', worker), queue)
      call('HSET', own('holders'), id, worker)
      call('ZADD', held_key(worker), place, id)
      bytes = bytes + #body
      tasks[#tasks + 1] = task(i - 5, id, body)
    end
  end
  return tasks
end

-- How many bytes of payloads one answer has, if the last one is left out.
local TASKS_BYTES = 4194304

-- ids …; answers the payload of each, if it exists, or of the first of them if they are many bytes
function op.tasks(queue, args)
  local found, bytes = {}, 0
  for i, id in ipairs(args) do
    if bytes > TASKS_BYTES then break end
    found[i] = queue_of(id) == queue and read('LINDEX', process_key(id), 0)
    bytes = bytes + #(found[i] or '')
  end
  return found
end

-- pairs of an id and the hash of its payload (or empty)
function op.ack(queue, args)
  local finished, payloads, holders = {}, {}, {}
  check('set', working_key(queue))
  check('set', own('cancelled'))
  for i = 1, #args, 2 do
    local id, hash = args[i], args[i + 1]
    if queue_of(id) == queue then
      payloads[id] = read('LINDEX', process_key(id), 0)
      holders[id] = read('HGET', own('holders'), id)
      if holders[id] then check('zset', held_key(holders[id])) end
    end
    if hash ~= '' then check('string', key('uniqueTasks', hash)) end
  end
  for i = 1, #args, 2 do
    local id, hash = args[i], args[i + 1]
    local payload = payloads[id]
    if payload then
      -- An id that is named twice is finished once.
      payloads[id] = nil
      call('DEL', process_key(id))
      if hash ~= '' then call('DEL', key('uniqueTasks', hash)) end
      local worker = forget(id, holders[id]) or SESSION
      tell(queue, 'done', '{"workerId":' .. cjson.encode(worker) .. ',"task":' .. cjson.encode(payload) .. '}')
      finished[#finished + 1] = (i - 1) / 2
    end
  end
  return finished
end

-- id; there is no deadline to move, and the answer is whether the task is still held
function op.extend(queue, args)
  local id = args[1]
  if queue_of(id) ~= queue or check('list', process_key(id)) == 0 then return 'stale' end
  return read('SISMEMBER', own('cancelled'), id) == 1 and 'cancelled' or 'done'
end

-- id, end of the queue: F or B
op['return'] = function(queue, args)
  if queue_of(args[1]) ~= queue then return 'stale' end
  check_processes({ args[1] })
  local outcome = requeue(args[1], args[2] == 'F' and 'RIGHT' or 'LEFT')
  if outcome == 'done' then tell_work(queue, 1) end
  return outcome
end

-- ids that this home delivered and that did not reach their caller
function op.requeue(queue, args)
  check_processes(args)
  local n = 0
  for i = #args, 1, -1 do
    if queue_of(args[i]) == queue and requeue(args[i], 'RIGHT') == 'done' then n = n + 1 end
  end
  tell_work(queue, n)
  return 'done'
end

-- Marks a process of sureq as cancelled; returns 1 if it was not.
local function mark_cancelled(id, payload)
  if call('LINDEX', process_key(id), 0) ~= payload then return 0 end
  return call('SADD', own('cancelled'), id)
end

-- payload, its hash, how long homes take the published cancel as executed, cursor; done in steps
function op.cancel_payload(queue, args)
  local payload, hash, ms, cursor = args[1], args[2], args[3], args[4]
  local n, found = 0, call('SSCAN', working_key(queue), cursor, 'COUNT', SLICE)
  check('string', key('uniqueTasks', hash))
  check('string', told_key(queue, hash))
  check_processes(found[2])
  if cursor == '0' then
    n = call('LREM', queue_key(queue), 0, payload)
    call('DEL', key('uniqueTasks', hash))
    call('SET', told_key(queue, hash), '1', 'PX', ms)
    tell(queue, 'cancel', payload)
  end
  for _, id in ipairs(found[2]) do
    if call('HEXISTS', own('holders'), id) == 1 then n = n + mark_cancelled(id, payload) end
  end
  return { found[1], n }
end

-- payload, its hash, workers …: a cancel was published. Answers the workers that are gone.
function op.hear_cancel(queue, args)
  local gone = {}
  if call('EXISTS', told_key(queue, args[2])) == 1 then return gone end
  for i = 3, #args do
    local worker = args[i]
    if not is_ours(worker) then gone[#gone + 1] = worker end
    for _, id in ipairs(call('ZRANGE', held_key(worker), 0, -1)) do
      if queue_of(id) == queue then mark_cancelled(id, args[1]) end
    end
  end
  return gone
end

-- worker, time to live
function op.start(_, args)
  local worker, ttl = args[1], args[2]
  local back = {}
  check_worker(worker)
  if is_ours(worker) then end_own(worker, back) else displace_foreign(worker, back) end
  call('SADD', PREFIX .. ':workers', worker)
  call('SADD', PREFIX .. ':expiringWorkers', worker)
  call('SREM', PREFIX .. ':permanentWorkers', worker)
  call('SET', key('workerTimers', worker), 'RUN', 'PX', ttl)
  call('HSET', own('workers'), worker, ttl)
  tell_back(back)
  return 0
end

-- worker. Answers the tasks that it must stop working on: cancelled ones, and, once, those that other workers took
-- from it.
function op.beat(_, args)
  local worker = args[1]
  check_worker(worker)
  local ttl = call('HGET', own('workers'), worker)
  if not ttl then return GONE end
  if not call('SET', key('workerTimers', worker), 'RUN', 'PX', ttl, 'XX') then
    local back = {}
    end_own(worker, back)
    tell_back(back)
    return GONE
  end
  local stop = {}
  for _, id in ipairs(call('ZRANGE', held_key(worker), 0, -1)) do
    if call('EXISTS', process_key(id)) == 0 then
      forget(id)
      stop[#stop + 1] = id
    else
      if call('SISMEMBER', own('cancelled'), id) == 1 then stop[#stop + 1] = id end
      -- Foreign clients remove this record when a worker of theirs fails.
      call('SADD', working_key(queue_of(id)), id)
    end
  end
  return stop
end

-- worker, queue
function op.work(_, args)
  check_worker(args[1])
  check_queue(args[2])
  if not is_ours(args[1]) or not is_alive(args[1]) then return GONE end
  call('SADD', key('workingQueues', args[1]), args[2])
  tell_work(args[2], call('LLEN', queue_key(args[2])))
  return 'done'
end

-- worker, queue
function op.rest(_, args)
  check_worker(args[1])
  check_queue(args[2])
  if not is_ours(args[1]) or not is_alive(args[1]) then return GONE end
  local back = {}
  call('SREM', key('workingQueues', args[1]), args[2])
  requeue_held(args[1], args[2], back)
  return tell_back(back)
end

-- worker
function op.stop(_, args)
  check_worker(args[1])
  if not is_ours(args[1]) then return GONE end
  return op.fail(nil, args)
end

-- worker
function op.fail(_, args)
  check_worker(args[1])
  local back = {}
  if is_ours(args[1]) then end_own(args[1], back) else fail_foreign(args[1], back) end
  return tell_back(back)
end

function op.workers()
  check_registry()
  local rows = {}
  for _, worker in ipairs(call('SMEMBERS', PREFIX .. ':workers')) do
    if is_alive(worker) then
      local ttl = call('HGET', own('workers'), worker) or max(call('PTTL', key('workerTimers', worker)), 0)
      rows[#rows + 1] = { worker, 0, ttl, check('zset', held_key(worker)) }
    end
  end
  return rows
end

function op.info(queue) return { call('LLEN', queue_key(queue)), call('SCARD', working_key(queue)) } end

-- ready or leased, start, count, how many bytes of payloads, cursor; done in steps
function op.inspect(queue, args)
  if args[1] == 'ready' then
    return show(queue_key(queue), args, function(payload) return false, payload end)
  end
  local working, room = working_key(queue), tonumber(args[4])
  local len = call('SCARD', working)
  local start, left = resumed(args, len)
  local shown, bytes, seen = { '0' }, 0, 0
  for _, id in ipairs(call('SORT', working, 'ALPHA', 'LIMIT', min(start, len), min(left, SLICE))) do
    local body = read('LINDEX', process_key(id), 0)
    if body then
      bytes = bytes + #body
      if bytes > room and #shown > 1 then break end
      shown[#shown + 1] = task(0, id, body)
    end
    seen = seen + 1
  end
  shown[1] = cursor_after(start, left, seen, len)
  return shown
end

-- Removes waiting tasks; those in progress stay.
function op.purge(queue)
  local n = call('LLEN', queue_key(queue))
  call('UNLINK', queue_key(queue))
  tell(queue, 'delete', '')
  return n
end

local function length(queue) return check('list', queue_key(queue)) + check('set', working_key(queue)) end

-- queues …
function op.exists(_, args)
  local n = 0
  for _, queue in ipairs(args) do
    if length(queue) > 0 then n = n + 1 end
  end
  return n
end

-- queues …; done in steps
function op.drop(_, args)
  local n, left, worked_on = 0, SLICE, {}
  for _, queue in ipairs(args) do
    check_queue(queue)
    if not worked_on[queue] then
      worked_on[queue] = left > 0 and call('SRANDMEMBER', working_key(queue), left) or {}
      check_processes(worked_on[queue])
      left = left - #worked_on[queue]
    end
  end
  for _, queue in ipairs(args) do
    if length(queue) > 0 then
      for _, id in ipairs(worked_on[queue]) do
        call('DEL', process_key(id))
        forget(id)
        call('SREM', working_key(queue), id)
      end
      if call('SCARD', working_key(queue)) > 0 then return { '1', n } end
      op.purge(queue)
      n = n + 1
    end
  end
  return { '0', n }
end

-- The queue of a key, if it is the key by which that queue is counted.
local function counted_queue(found)
  local name = string.match(found, '^queues:(.*)$', #PREFIX + 2)
  if name then return call('TYPE', found).ok == 'list' and name or nil end
  name = string.match(found, '^workingProcesses:(.*)$', #PREFIX + 2)
  if name and call('EXISTS', queue_key(name)) == 0 and call('TYPE', found).ok == 'set' then return name end
end

function layout.scan(cursor, count)
  local found = call('SCAN', cursor, 'MATCH', beginning(PREFIX .. ':'), 'COUNT', count)
  local names = {}
  for _, one in ipairs(found[2]) do names[#names + 1] = counted_queue(one) end
  return found[1], names
end

function layout.counts(name)
  return length_or_none('list', queue_key(name)), length_or_none('set', working_key(name))
end

-- for how many milliseconds to lock cleaning (or empty), queues … Answers for each queue with requeued or removed
-- tasks its name, how many were requeued, and how many had no process; then how many tasks wait in the named queues.
-- A dead worker with a key of the wrong type is left for later; in a named queue, such a key is refused.
function op.clean(_, args)
  check_registry()
  for i = 2, #args do check_whole_queue(args[i]) end
  if is_locked(own('cleaning'), args[1]) then return 'busy' end
  local back, ghosts, waiting = {}, {}, 0
  local busy, ended = foreign_queues(), 0
  -- Worqr's own cleanup may have unregistered a worker of sureq; then only this hash has it.
  for _, worker in ipairs(call('HKEYS', own('workers'))) do
    if ended < SLICE and not is_alive(worker) and pcall(check_worker, worker) then
      end_own(worker, back)
      ended = ended + 1
    end
  end
  for _, worker in ipairs(call('SMEMBERS', PREFIX .. ':expiringWorkers')) do
    local is_due = ended < SLICE and not is_alive(worker) and pcall(check_foreign, worker)
    if is_due and end_foreign(worker, busy, back) then ended = ended + 1 end
  end
  for i = 2, #args do
    local queue = args[i]
    ghosts[queue] = requeue_unheld(queue, busy, back)
    back[queue] = back[queue] or 0
    waiting = waiting + call('LLEN', queue_key(queue))
  end
  tell_back(back)
  local rows = {}
  for queue, n in pairs(back) do rows[#rows + 1] = { queue, n, ghosts[queue] or 0 } end
  return { rows, waiting }
end

-- cursor. Adds every process that is in no set to the set of its queue, so that cleaning the queue finds it. Answers
-- the next cursor, the queues, and the payloads of all processes.
function op.adopt(_, args)
  local found = call('SCAN', args[1], 'MATCH', beginning(PREFIX .. ':processes:'), 'COUNT', PAGE)
  local queues, payloads = {}, {}
  for _, process in ipairs(found[2]) do
    local id = string.sub(process, #PREFIX + 12)
    local payload = call('TYPE', process).ok == 'list' and call('LINDEX', process, 0)
    if payload then
      payloads[#payloads + 1] = payload
      local holder = call('HGET', own('holders'), id)
      if holder and not is_ours(holder) then forget(id) end
      local kind = call('TYPE', working_key(queue_of(id))).ok
      local is_right = kind == 'set' or kind == 'none'
      if is_right and call('SADD', working_key(queue_of(id)), id) == 1 then queues[#queues + 1] = queue_of(id) end
    end
  end
  return { found[1], queues, payloads }
end

-- cursor. Answers the next one, and hashes of unique payloads.
function op.marks(_, args)
  local found = call('SCAN', args[1], 'MATCH', beginning(PREFIX .. ':uniqueTasks:'), 'COUNT', SLICE, 'TYPE', 'string')
  local hashes = {}
  for i, mark in ipairs(found[2]) do hashes[i] = string.sub(mark, #PREFIX + 14) end
  return { found[1], hashes }
end

-- how many tasks at the left of the queue to skip. Answers payloads.
function op.waiting(queue, args)
  return call('LRANGE', queue_key(queue), args[1], args[1] + PAGE - 1)
end

-- hashes that no task has
function op.unmark(_, args)
  local n = 0
  for _, hash in ipairs(args) do n = n + call('DEL', key('uniqueTasks', hash)) end
  return n
end

-- Operations whose first argument is their queue.
local ABOUT_ONE = {
  push = true, add = true, tasks = true, ack = true, extend = true, ['return'] = true, requeue = true, cancel_payload = true,
  hear_cancel = true, info = true, inspect = true, purge = true, waiting = true,
}

-- Frequent operations, which check no more keys than they need.
local CHECKS_ITSELF = { push = true, add = true, ack = true, extend = true }

local function run(_, given)
  begin(given)
  local name, args, queue = given[1], {}, nil
  local first = 5
  if ABOUT_ONE[name] then
    queue, first = given[5], 6
  end
  for i = first, #given do args[#args + 1] = given[i] end
  local answer = guarded(function()
    if queue and not CHECKS_ITSELF[name] then check_queue(queue) end
    return op[name](queue, args)
  end)
  return { 0, answer }
end
