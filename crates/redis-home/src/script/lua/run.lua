-- Housekeeping, and `run`, which executes one operation.

-- Applies what is due in these queues, as far as one call may; answers for each when to look again.
function ops.tick(a)
  local out = {}
  for i, name in ipairs(rest(a)) do
    -- Waiters for other queues must get their answers.
    local is_ours, row = attempt(function()
      local q = open(name)
      if i > 1 and slice_left <= 0 and (is_due(q) or are_sources_due(q)) then return { log, 0, log, wall } end
      settle(q)
      return next_look(q, settle_sources(q))
    end)
    out[i] = is_ours and row or { log + UNSOUND_MS, 0, log, wall }
  end
  return out
end

-- After a start or a failover, older leases and workers last a while longer.
local function notice_start()
  if store.epoch == args[5] then return end
  store.epoch, store.started, is_store_changed = args[5], log, true
end

-- Applies what is due for the whole store. A key of another type is retried later, and stops no operation.
local function keep_house(when, act)
  if attempt(act) then return end
  if store[when] and store[when] <= log then
    store[when], is_store_changed = log + UNSOUND_MS, true
  end
end

local function perform()
  local is_on_time, late_us, offset_us = begin()
  if not is_on_time then return { late_us, { '!', 'LATE', integer(offset_us) } } end
  notice_start()
  if args[1] ~= 'epoch' then
    keep_house('lost', end_lost_workers)
    keep_house('homes', end_lost_homes)
    keep_house('gone', end_gone)
  end
  local answer = ops[args[1]](ARGUMENTS[args[1]](args))
  finish()
  return { time_us, answer }
end

-- Executes an operation. If a key that it needs has a value of another type, the operation is refused and has changed
-- nothing; changes to other queues that were due before that stay.
local function run(its_keys, its_args)
  keys, args, time_us = its_keys, its_args, nil
  local is_done, answer = pcall(perform)
  if is_done then return answer end
  if type(answer) ~= 'table' or not answer.wrong then error(answer, 0) end
  if time_us then
    local is_dirty = false
    for _, q in ipairs(order_opened) do is_dirty = is_dirty or q.dirty end
    if is_dirty then finish() end
  end
  return { time_us or 0, { '!', 'WRONGTYPE', answer.wrong } }
end
