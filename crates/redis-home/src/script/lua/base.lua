-- The queue on plain Redis. Each call is one operation, and atomic. It calls `run`, at the end of `run.lua`: as
-- a function of a library where Redis has those (7.0), since its parts are then created once and not for each call, as
-- a script elsewhere.
--
-- The script is these files, one after the other: `base.lua` with constants and helpers, `time.lua`, `queues.lua`,
-- `tasks.lua`, `deadlines.lua`, `workers.lua`, `ops_tasks.lua`, `ops_queues.lua`, `ops_workers.lua`, `run.lua`. A file
-- can use the local functions of those before it.
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

-- Due tasks that one call moves: two or three milliseconds of Redis. Callers ask for no more in one call either.
local SLICE = 200
-- At least this many of each kind in each queue, even if other queues of the same call used up the slice.
local SLICE_MIN = 16
-- Lost workers and connections that one call handles.
local GONE_MAX = 16
-- Queues of one of them that one call examines, approximately.
local QUEUES_AT_ONCE = 64
-- The distance between priorities in the scores of `:ready`; positions in the queue are below it.
local PRIORITY_STEP = 17592186044416
local SEQ_MAX = 131071
-- Log time that was ahead by no more than this stands still until time has caught up; otherwise it stays ahead.
local CLOCK_US = 1000000
local EMPTY_QUEUE_S = 3600
local EMPTY_STORE_S = 604800
-- After the start of a server, older leases last at least this long, if they were that long.
local START_MS = 10000
-- A store stays listed for this long after it was last listed.
local LISTED_MS = 3600000
-- Unused stores that one answer names.
local STALE = 32
-- The pause before an operation is retried that a key of another type prevented.
local UNSOUND_MS = 2000
-- A home without a heartbeat for this long counts as silent, and as lost this long after that was noticed. Homes send
-- a heartbeat every ten seconds, and notice within three that one has failed.
local SILENT_MS = 15000
local LOST_MS = 15000
-- The score of a home is its next check time plus this. The scripts of the release before end a home as soon as its
-- score is reached, and share the key with these during a rolling upgrade.
local SCORE_AHEAD_MS = 15000
local REPLY_BYTES_MAX = 67108864
-- Leases that one call searches for those that nothing else ends.
local LOOKED_AT = 500
-- Arguments of one command.
local ARGS_MAX = 2000
-- Payload bytes that are read at a time, approximately.
local STEP_BYTES = 4194304
-- Ids in one message.
local MESSAGE_IDS = 100
-- The longest time between two stores of the clock. Redis' own clock does not go back meanwhile; if it does, callers
-- report it.
local CLOCK_KEPT_MS = 50
-- Poll interval of queues with AT tasks: setting the wall clock publishes nothing.
local WALL_POLL_MS = 1000

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
-- Due tasks that this call may still move.
local slice_left
-- Expired tasks that the pops of this call may still skip.
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

