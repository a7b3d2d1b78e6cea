-- The beginning of the scripts of all foreign layouts. Each call is one operation, and atomic.
--
--   KEYS[1]  a key of the queue, or of the prefix, which determines the slot of all keys
--   ARGV     1 the operation
--            2 the prefix of all keys
--            3 what the session of the layout reports with each call
--            4 the home that calls
--            then the arguments of the operation
--
-- Answers a pair: a number for the session, 0 if it has no meaning, and the answer of the operation.

-- A library is loaded in an environment that has almost no globals; each call sets these.
local PREFIX, SETTING, SESSION
local call, min, max

-- How many ids a step of cleaning looks at.
local PAGE = 100
-- How many ids a step of any other operation removes, so that other clients are not delayed.
local SLICE = 1000
local REPLY_BYTES_MAX = 67108864
-- A reply with fewer bytes than this has room for any payload.
local REPLY_BYTES_FREE = 1048576

local op = {}

local function begin(given)
  PREFIX, SETTING, SESSION = given[2], given[3], given[4]
  call, min, max = redis.call, math.min, math.max
end

-- Ends the call, which must not have written anything: this key has a value of another type. `guarded` catches it.
local function wrong_type(name) error({ wrong = name }, 0) end

-- Calls a command on the key `name`: one that only reads, or the first that writes.
local function read(command, name, ...)
  local found = redis.pcall(command, name, ...)
  if type(found) == 'table' and found.err then
    if string.find(found.err, 'WRONGTYPE', 1, true) then wrong_type(name) end
    error(found, 0)
  end
  return found
end

-- Commands that fail on any other type, and cost nothing.
local MEASURE = { list = 'LLEN', set = 'SCARD', string = 'STRLEN', hash = 'HLEN', zset = 'ZCARD' }

-- Checks that a key has this type or does not exist. Returns its length.
local function check(kind, name) return read(MEASURE[kind], name) end

-- The length of the value of a key; 0 if it has another type.
local function length_or_none(kind, name)
  local found = call('TYPE', name).ok
  return found == kind and call(MEASURE[kind], name) or 0
end

-- Executes an operation; a key of the wrong type is a refusal.
local function guarded(operation, ...)
  local is_done, answer = pcall(operation, ...)
  if is_done then return answer end
  if type(answer) == 'table' and answer.wrong then return { '!', 'WRONGTYPE', answer.wrong } end
  error(answer, 0)
end

-- The refusal of a push whose new ids are in use.
local function id_taken() return { '!', 'UNAVAILABLE', 'a new id is in use already: try again' } end

-- A task in an answer.
local function task(index, id, body) return { index, id, body, 0, 0, 0, 0, false } end

-- Inspects tasks of a list, from the right: start, count. `read` returns id and payload, or nothing.
local function show(list, args, read)
  local len, start = call('LLEN', list), tonumber(args[2])
  if start < 0 then start = max(len + start, 0) end
  local stop, tasks, bytes = min(start + tonumber(args[3]), len), {}, 0
  while start < stop do
    local found = call('LRANGE', list, -min(start + PAGE, stop), -start - 1)
    for i = #found, 1, -1 do
      local id, body = read(found[i])
      if body then
        bytes = bytes + #body
        if bytes > REPLY_BYTES_MAX and #tasks > 0 then return tasks end
        tasks[#tasks + 1] = task(0, id, body)
      end
    end
    start = start + PAGE
  end
  return tasks
end

-- Whether another home is cleaning. If not, this one holds the lock for this many milliseconds, or without a lock if
-- there are none.
local function is_locked(lock, ms)
  if ms == '' or call('SET', lock, SESSION, 'PX', ms, 'NX') then return false end
  if read('GET', lock) ~= SESSION then return true end
  call('PEXPIRE', lock, ms)
  return false
end

-- A pattern for texts with this beginning.
local function beginning(text) return string.gsub(text, '[%*%?%[%]\\]', '\\%0') .. '*' end

-- Functions of each layout: `scan(cursor, count)` returns the next cursor and names of queues, `counts(name)` the
-- numbers of waiting and of taken tasks of a queue.
local layout = {}

-- cursor, count
function op.queues(_, args)
  local cursor, names = layout.scan(args[1], min(tonumber(args[2]), SLICE))
  local rows = { cursor }
  for _, name in ipairs(names) do
    local waiting, held = layout.counts(name)
    rows[#rows + 1] = { name, waiting, 0, held, 0 }
  end
  return rows
end

-- cursor; done in steps
function op.size(_, args)
  local cursor, names = layout.scan(args[1], SLICE)
  return { cursor, #names }
end
