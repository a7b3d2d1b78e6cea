-- What the scripts of all layouts of other programs begin with. Each call is one operation, and atomic.
--
--   KEYS[1]  a key of the queue, or of the prefix: it says in which slot all keys lie
--   ARGV     the operation, the prefix of all keys, what the layout is told with each call, the home that calls,
--            then what the operation wants
--
-- Answers a pair: a word to the home, 0 if there is none, and what the operation answers.

-- A library is loaded where there is next to nothing yet: these are set by each call.
local PREFIX, SETTING, SESSION
local call, min, max

-- How many ids a step of cleaning looks at.
local PAGE = 100
-- How many ids a step of anything else removes, so that nobody is held up.
local SLICE = 1000
local REPLY_BYTES_MAX = 67108864
-- A reply with fewer bytes has room for any payload.
local REPLY_BYTES_FREE = 1048576

local op = {}

local function begin(given)
  PREFIX, SETTING, SESSION = given[2], given[3], given[4]
  call, min, max = redis.call, math.min, math.max
end

-- Ends the call, which must have written nothing yet: this key holds a value of another type. `guarded` catches it.
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

-- A command that fails on any other type, and costs nothing.
local MEASURE = { list = 'LLEN', set = 'SCARD', string = 'STRLEN', hash = 'HLEN', zset = 'ZCARD' }

-- Sees to it that a key holds this type, or nothing. Answers its length.
local function check(kind, name) return read(MEASURE[kind], name) end

-- The length of what a key holds; 0 if it has another type.
local function length_or_none(kind, name)
  local found = call('TYPE', name).ok
  return found == kind and call(MEASURE[kind], name) or 0
end

-- Does an operation; a key of the wrong type is a refusal.
local function guarded(operation, ...)
  local is_done, answer = pcall(operation, ...)
  if is_done then return answer end
  if type(answer) == 'table' and answer.wrong then return { '!', 'WRONGTYPE', answer.wrong } end
  error(answer, 0)
end

-- The refusal of a push whose new ids are in use.
local function id_taken() return { '!', 'UNAVAILABLE', 'a new id was taken already: try again' } end

-- A task as it is shown or handed out.
local function task(index, id, body) return { index, id, body, 0, 0, 0, 0, false } end

-- Shows tasks from the right of a list on: start, count. `read` answers id and payload, or nothing.
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

-- Whether another home cleans; if not, this one does, for so many milliseconds (or without a lock, if there are none).
local function is_locked(lock, ms)
  if ms == '' or call('SET', lock, SESSION, 'PX', ms, 'NX') then return false end
  if read('GET', lock) ~= SESSION then return true end
  call('PEXPIRE', lock, ms)
  return false
end

-- A pattern that matches what begins with this.
local function beginning(text) return string.gsub(text, '[%*%?%[%]\\]', '\\%0') .. '*' end

-- What a layout says of itself: `scan(cursor, count)` answers the next cursor and names of queues, `counts(name)` how many of a
-- queue's tasks wait and how many are held.
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
