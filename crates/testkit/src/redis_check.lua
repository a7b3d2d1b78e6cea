-- Checks whether all keys of a prefix are consistent; answers the inconsistencies, one line each.
local PREFIX, wrong = ARGV[1], {}
local call = redis.call

local function check(is_right, ...)
  if not is_right then wrong[#wrong + 1] = table.concat({ ... }, ' ') end
end

local INDEX = { R = ':ready', D = ':delayed', A = ':appointed', L = ':leased', X = ':dead' }

local function check_queue(k)
  local s = cmsgpack.unpack(call('GET', k .. ':state'))
  local ids, waiting, counts = call('HKEYS', k .. ':body'), 0, { R = 0, D = 0, A = 0, L = 0, X = 0 }
  local timed, mortal, named, held = 0, 0, 0, 0
  for _, id in ipairs(ids) do
    local record = call('HGET', k .. ':task', id)
    local t = record and cmsgpack.unpack(record) or { st = 'R' }
    local places = 0
    for st, index in pairs(INDEX) do
      local score = call('ZSCORE', k .. index, id)
      if score then
        places = places + 1
        check(st == t.st, k, id, 'is said to be', t.st, 'and stands in', index)
        if t.du then check(tonumber(score) == t.du, k, id, 'is due at another time') end
      end
    end
    check(places == 1, k, id, 'stands in', places, 'places')
    counts[t.st] = counts[t.st] + 1
    local is_waiting = t.st == 'R' or t.st == 'D' or t.st == 'A'
    if is_waiting then waiting = waiting + call('HSTRLEN', k .. ':body', id) end
    if t.dl then
      timed = timed + 1
      check(t.st == 'L' and tonumber(call('ZSCORE', k .. ':ends', id)) == t.dl, k, id, 'has another deadline')
    end
    if t.ex and is_waiting then
      mortal = mortal + 1
      check(tonumber(call('ZSCORE', k .. ':expires', id)) == t.ex, k, id, 'expires at another time')
    end
    if t.nm then
      named = named + 1
      check(call('HGET', k .. ':names', t.nm) == id, k, id, 'is not who its name says')
    end
    if t.ho then
      held = held + 1
      check(t.st == 'L' and call('ZSCORE', k .. ':held:' .. t.ho, id), k, id, 'is not held by its holder')
    end
  end
  for st, index in pairs(INDEX) do
    check(call('ZCARD', k .. index) == counts[st], k, index, 'holds others too')
  end
  check(call('ZCARD', k .. ':ends') == timed, k, 'has deadlines of others')
  check(call('ZCARD', k .. ':expires') == mortal, k, 'has expiries of others')
  check(call('HLEN', k .. ':names') == named, k, 'has names of others')
  check(call('HLEN', k .. ':task') <= #ids, k, 'has records of others')
  local all_held = 0
  for _, holder in ipairs(call('SMEMBERS', k .. ':holders')) do
    all_held = all_held + call('ZCARD', k .. ':held:' .. holder)
  end
  check(all_held == held, k, 'holds for others')
  check(s.len == #ids, k, 'counts', s.len, 'and has', #ids)
  check(s.bytes == waiting, k, 'counts', s.bytes, 'bytes and has', waiting)
  for _, index in ipairs({ ':ends', ':expires', ':delayed' }) do
    local first = tonumber(call('ZRANGE', k .. index, 0, 0, 'WITHSCORES')[2])
    check(not first or s.next and s.next <= first, k, 'does not know when to look at', index)
  end
  local name = string.match(string.sub(k, #PREFIX + 1), '{(.*)}$')
  if string.sub(k, #PREFIX + 1, #PREFIX + 1) == 'x' then name = string.sub(name, 2) end
  -- If each slot tag is a store of its own, its list is that of its store.
  local tag = string.match(string.sub(k, #PREFIX + 1), '{([^}]*)')
  local own = call('EXISTS', PREFIX .. 's:{' .. tag .. '}:store') == 1 and PREFIX .. 's:{' .. tag .. '}:' or PREFIX
  check((call('ZSCORE', own .. 'queues', name) and true or false) == (#ids > 0), k, 'is not listed as it should be')
end

for _, key in ipairs(call('KEYS', PREFIX .. '*:state')) do
  check_queue(string.sub(key, 1, -7))
end
return wrong
