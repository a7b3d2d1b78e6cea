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
-- How many ids a step of any other operation looks at or removes, so that other clients are not delayed.
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

-- Where a step of INSPECT begins among `len` tasks, and how many are left to look at: as the step before has answered,
-- or at first as the command says.
local function resumed(args, len)
  local start, left = string.match(args[5], '^(%d+):(%d+)$')
  if start then return tonumber(start), tonumber(left) end
  start = tonumber(args[2])
  if start < 0 then start = max(len + start, 0) end
  return start, tonumber(args[3])
end

-- The cursor after a step that looked at `seen` tasks from `start` on.
local function cursor_after(start, left, seen, len)
  if seen >= left or start + seen >= len then return '0' end
  return string.format('%d:%d', start + seen, left - seen)
end

-- A step of INSPECT, in a list from the right: view, start, count, how many bytes of payloads, cursor. `read` returns
-- id and payload, or nothing. Answers the next cursor, then tasks.
local function show(list, args, read)
  local len, room = call('LLEN', list), tonumber(args[4])
  local start, left = resumed(args, len)
  local stop, shown, bytes, seen = min(left, len - start, SLICE), { '0' }, 0, 0
  -- Few at first: in some lists they are the payloads.
  local page = 1
  while seen < stop do
    local found = call('LRANGE', list, -start - min(seen + page, stop), -start - seen - 1)
    page = min(2 * page, PAGE)
    for i = #found, 1, -1 do
      local id, body = read(found[i])
      if body then
        bytes = bytes + #body
        if bytes > room and #shown > 1 then
          shown[1] = cursor_after(start, left, seen, len)
          return shown
        end
        shown[#shown + 1] = task(0, id, body)
      end
      seen = seen + 1
    end
  end
  shown[1] = cursor_after(start, left, seen, len)
  return shown
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
-- numbers of waiting and of taken tasks of a queue; false if `info` must count them in steps.
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
