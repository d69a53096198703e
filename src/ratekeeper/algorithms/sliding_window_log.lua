-- Sliding window log: sliding_window_log.py on Redis, in the same order with the same names.
-- A log is a list of blocks of up to 64 entries, eight bytes an entry. A block begins with the width of its totals, the
-- time that its times count from and the total before it; an entry is a time and the total of the block up to and
-- including it. Totals count modulo 2^48, far above what can be in use. Both columns only rise: all is found by search.

local HEADER, ENTRIES = 14, 64
local FAR = 2 ^ 40 -- microseconds that an entry's time can be from its block's
local TURN = 2 ^ 48

local function new_block(at, total, cost)
  local width = cost < 2 ^ 23 and 3 or 6
  return struct.pack('>BI7I6I5I' .. width, width, at, total % TURN, 0, cost)
end

local function block_at(log, index)
  local block = log.blocks[index]
  if not block then
    block = redis.call('LINDEX', log.key, index)
    log.blocks[index] = block
  end
  return block
end

local function entries_in(block)
  return (#block - HEADER) / (5 + block:byte(1))
end

local function time_of(block, entry)
  return struct.unpack('>I7', block, 2) + struct.unpack('>I5', block, HEADER + (entry - 1) * (5 + block:byte(1)) + 1)
end

-- The total of this block alone, up to and including an entry.
local function total_in(block, entry)
  local width = block:byte(1)
  return entry == 0 and 0 or struct.unpack('>I' .. width, block, HEADER + entry * (5 + width) - width + 1)
end

local function total_of(block, entry)
  return struct.unpack('>I6', block, 9) + total_in(block, entry)
end

local function without_last(block)
  return block:sub(1, -6 - block:byte(1))
end

local function newest_of(log)
  local block = block_at(log, log.last)
  return block, entries_in(block)
end

-- Return the block and the first of its entries whose value is above the bound, or nothing. Strides that double and then
-- halve again: what is sought is nearly always close to the head.
local function seek(log, value, bound)
  local block = block_at(log, log.first)
  if value(block, 1) > bound then -- as long as nothing has expired
    return block, 1, log.first
  end
  local below, above, stride = log.first - 1, log.first, 1
  while true do
    block = block_at(log, above)
    if value(block, entries_in(block)) > bound then
      break
    end
    if above == log.last then
      return nil
    end
    below, above, stride = above, math.min(above + stride, log.last), stride * 2
  end
  while above - below > 1 do
    local middle = math.floor((below + above) / 2)
    block = block_at(log, middle)
    if value(block, entries_in(block)) > bound then
      above = middle
    else
      below = middle
    end
  end
  block = block_at(log, above)
  local low, high = 0, entries_in(block)
  while high - low > 1 do
    local middle = math.floor((low + high) / 2)
    if value(block, middle) > bound then
      high = middle
    else
      low = middle
    end
  end
  return block, high, above
end

-- Return when a decision at `now` is taken, the block that has the oldest live entry, the total before that, and theirs.
local function settle(rule, log, now)
  if not log then
    return now, nil, 0, 0
  end
  local window, at = rule[2], now
  local tail, last = newest_of(log)
  local newest = time_of(tail, last)
  if newest > now then
    if newest > now + window then
      return now, nil, 0, 0
    end
    at = newest -- the clock stepped back: decide when the newest unit was admitted
  end
  local block, head, index = seek(log, time_of, at - window)
  if not block then
    return at, nil, 0, 0
  end
  local base = total_of(block, head - 1)
  return at, index, base, (total_of(tail, last) - base) % TURN
end

local function change(log, index, block)
  log.blocks[index] = block
  log.changed[index] = true
end

local function append(log, head, used, at, cost)
  if used == 0 then
    local last = log and log.last + 1 or 0
    log = log or {blocks = {}, changed = {}, length = 0}
    log.first, log.last = last, last
    change(log, last, new_block(at, 0, cost))
    return log
  end
  log.first = head
  local tail, last = newest_of(log)
  if time_of(tail, last) == at then
    cost = cost + total_in(tail, last) - total_in(tail, last - 1)
    tail, last = without_last(tail), last - 1
  end
  local width, begins = struct.unpack('>BI7', tail)
  local total = total_in(tail, last) + cost
  if last < ENTRIES and at - begins < FAR and total < 256 ^ width then
    change(log, log.last, tail .. struct.pack('>I5I' .. width, at - begins, total))
  else
    if last > 0 then
      change(log, log.last, tail)
      log.last = log.last + 1
    end
    change(log, log.last, new_block(at, total_of(tail, last), cost))
  end
  return log
end

local function newest_leaves_after(log, used, time)
  return used > 0 and time_of(newest_of(log)) + time or 0
end

local function decide(rule, log, now, cost, consume)
  local limit, window = rule[1], rule[2]
  local at, head, base, used = settle(rule, log, now)
  local left = limit - used - cost
  if left < 0 then
    local reset_after = newest_leaves_after(log, used, window - now)
    if cost > limit then
      return log, 0, math.max(0, limit - used), NEVER, reset_after, 0
    end
    local function units_from_base(block, entry)
      local units = (total_of(block, entry) - base) % TURN
      return units < TURN / 2 and units or 0 -- an entry that has expired stands before the base
    end
    local block, leaves = seek(log, units_from_base, -left - 1) -- the entry whose leaving makes enough room
    return log, 0, math.max(0, limit - used), time_of(block, leaves) + window - now, reset_after, 0
  end
  if consume then
    return append(log, head, used, at, cost), 1, left, 0, at + window - now, 0
  end
  return log, 1, limit - used, 0, newest_leaves_after(log, used, window - now), 0
end

local function read(key)
  local length = redis.call('LLEN', key)
  return length > 0 and {key = key, blocks = {}, changed = {}, length = length, first = 0, last = length - 1} or nil
end

local function write(key, log, ttl_ms)
  local kept = log.first < log.length -- whether something of what was there is left
  if not kept and log.length > 0 then
    redis.call('DEL', key)
  end
  for index in pairs(log.changed) do
    if log.first <= index and index <= log.last and index < log.length then
      redis.call('LSET', key, index, log.blocks[index])
    end
  end
  for index = math.max(log.first, log.length), log.last do
    redis.call('RPUSH', key, log.blocks[index])
  end
  if kept and (log.first > 0 or log.last < log.length - 1) then
    redis.call('LTRIM', key, log.first, log.last)
  end
  redis.call('PEXPIRE', key, ttl_ms)
end

local step = {decide = decide, read = read, write = write}
if alone then -- one hit asks for no more
  return step
end

function step.charge(rule, log, now, cost)
  local at, head, _, used = settle(rule, log, now)
  local room = MAX_USAGE - used
  return room > 0 and append(log, head, used, at, math.min(cost, room)) or log
end

-- Take the newest units out, and entries that have none left.
local function take(log, units)
  while true do
    local tail, last = newest_of(log)
    local before = total_in(tail, last - 1)
    local there = total_in(tail, last) - before
    if there > units then
      if units > 0 then
        local width = tail:byte(1)
        change(log, log.last, tail:sub(1, -1 - width) .. struct.pack('>I' .. width, before + there - units))
      end
      return log
    end
    units = units - there
    if last > 1 then
      change(log, log.last, without_last(tail))
    else
      log.last = log.last - 1
    end
  end
end

function step.refund(rule, log, now, cost)
  local _, head, _, used = settle(rule, log, now)
  if cost >= used then
    return nil
  end
  log.first = head
  return take(log, cost)
end

function step.give_back(rule, log, now, cost, charged_at)
  local at, head, _, used = settle(rule, log, now)
  if used == 0 or charged_at <= at - rule[2] then
    return log
  end
  local block, entry, index = seek(log, time_of, charged_at - 1)
  if not block or time_of(block, entry) ~= charged_at then
    return log
  end
  local taken = math.min(cost, total_in(block, entry) - total_in(block, entry - 1))
  if taken == used then
    return nil
  end
  log.first = head
  if index == log.last and entry == entries_in(block) then
    return take(log, taken)
  end
  local width = block:byte(1)
  for later = entry, entries_in(block) do -- an entry that has no units left stays: it answers as if it were not there
    local from = HEADER + later * (5 + width) - width
    block = block:sub(1, from) .. struct.pack('>I' .. width, total_in(block, later) - taken) .. block:sub(from + width + 1)
  end
  change(log, index, block)
  for later = index + 1, log.last do
    block = block_at(log, later)
    change(log, later, block:sub(1, 8) .. struct.pack('>I6', (total_of(block, 0) - taken) % TURN) .. block:sub(15))
  end
  return log
end

function step.expires_at(rule, log)
  return time_of(newest_of(log)) + rule[2]
end

return step
