-- Log time: the clock of the store, which advances at the rate of real time whatever the wall clock of Redis does.

local function begin()
  call, floor, max, min = redis.call, math.floor, math.max, math.min
  pack, unpacked = cmsgpack.pack, cmsgpack.unpack
  STORE, OWN, PREFIX, opened, order_opened = keys[2], string.sub(keys[2], 1, -6), args[2], {}, {}
  local known = packed(STORE)
  store = known or { clock = 0, offset = 0, ms = 0, seq = 0, epoch = '', started = 0 }
  local wall_us = tonumber(args[4])
  if not wall_us then
    local time = call('TIME')
    wall_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
  end
  local offset_us = store.offset * 1000 + (store.part or 0)
  time_us = wall_us + offset_us
  local least, guess, latest, judged, ahead = string.match(args[3], '^(%d+):(%d+):(%d+):?(%-?%d*):?(%d*)$')
  if least then
    if judged ~= '' then
      local corrected = wall_us + tonumber(judged) - tonumber(ahead)
      -- Another call may have set the offset since. The correction is still valid, unless the clock was set again.
      local is_within = time_us > tonumber(latest) and corrected >= tonumber(least) and corrected <= tonumber(latest)
      if judged == integer(offset_us) or is_within then time_us = corrected end
    end
    -- Either the call took long to arrive or the clock was set. Only the caller can decide which, and it repeats the
    -- call.
    if time_us > tonumber(latest) then return false, wall_us + offset_us, offset_us end
    if time_us < tonumber(least) then time_us = tonumber(guess) end
  end
  -- If log time was a little ahead, it stands still until time has caught up. If it was more, this caller knows too
  -- little.
  if time_us < store.clock * 1000 - CLOCK_US then time_us = store.clock * 1000 end
  local log_us = max(time_us, store.clock * 1000)
  wall, log, log_end = floor(wall_us / 1000), floor(log_us / 1000), floor((log_us + 999) / 1000)
  moment, slice_left, pass_left, gone_known = log_end, SLICE, SLICE, {}
  local offset = floor((time_us - wall_us) / 1000)
  local part = time_us - wall_us - offset * 1000
  is_store_changed = not known or log - store.clock >= CLOCK_KEPT_MS or offset ~= store.offset or part ~= (store.part or 0)
  if is_store_changed then store.clock, store.offset, store.part = log, offset, part end
  return true
end

-- Strings of three digits, made by the first call that needs them.
local digits

-- The next `count` ids. A push of thousands of tasks is one call, so this must be cheap: concatenating three strings
-- takes half the time of string.format.
local function next_ids(count)
  is_store_changed = true
  if not digits then
    digits = {}
    for i = 0, 999 do digits[i] = string.format('%03d', i) end
  end
  if log > store.ms then
    -- Stores of a cluster assign ids without asking each other, so each starts with another number.
    local first = OWN == PREFIX and 0 or tonumber(string.sub(redis.sha1hex(OWN), 1, 4), 16)
    store.ms, store.seq = log, first
  end
  local ids, ms, seq = {}, store.ms, store.seq
  local head = integer(ms) .. '-'
  for i = 1, count do
    seq = seq + 1
    if seq > SEQ_MAX then
      ms, seq = ms + 1, 1
      head = integer(ms) .. '-'
    end
    local high = floor(seq / 1000)
    ids[i] = head .. digits[high] .. digits[seq - high * 1000]
  end
  store.ms, store.seq = ms, seq
  return ids
end

