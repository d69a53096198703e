-- Sliding window log: sliding_window_log.py on Redis, in the same order with the same names. The functions that read
-- and write blocks (is_block, entry_of, ..., change, read, write, entries_in, take) exist only here.
-- A log is a list of blocks of up to 32 entries, eight bytes per entry. A block begins with the width of its totals,
-- the time from which its times count, and the total before it; an entry is a time and the block's total up to and
-- including it. Totals count modulo 2^48, far above any possible usage. Both columns only increase, so entries are
-- found by search. The header of the last block also has the time of the oldest live entry and the total before that: as long
-- as this entry is in the window, no other block is read. Stored blocks are counted from the end, -1 is the last; new
-- ones follow from 0.

local HEADER, ENTRIES = 27, 32
local FAR = 2 ^ 40 -- the most microseconds between the times of an entry and of its block
local TURN = 2 ^ 48

-- Whether a stored value can be a block. Whatever a block holds, every loop below ends: it goes on by whole entries and
-- blocks, each of which was checked.
local function is_block(value)
  local width, size = value:byte(1), #value - HEADER
  return (width == 3 or width == 6) and size > 0 and size <= ENTRIES * (5 + width) and size % (5 + width) == 0
end

-- An entry, by default the last in its block: its time, the total up to and including it, and the block's header.
local function entry_of(block, entry)
  local width, begins, before, oldest, base = struct.unpack('>BI7I6I7I6', block)
  local from = entry and HEADER + (entry - 1) * (5 + width) + 1 or #block - 4 - width
  local time, total = struct.unpack(width == 3 and '>I5I3' or '>I5I6', block, from)
  return begins + time, before + total, width, begins, before, oldest, base
end

local function total_before(block, entry)
  if entry > 1 then
    return (select(2, entry_of(block, entry - 1)))
  end
  return (select(5, entry_of(block, 1)))
end

local function block_at(log, index)
  local block = log[index]
  if not block then
    block = redis.call('LINDEX', log.key, index)
    if not (block and is_block(block)) then
      damaged(log.key)
    end
    log[index] = block
  end
  return block
end

-- Return the first entry whose value is above the bound, its block and the block's index, or nothing. The strides
-- double and then halve again, since the entry is almost always close to the head.
local function seek(log, value, bound)
  if not log.first then
    log.length = redis.call('LLEN', log.key)
    log.first = -log.length
  end
  local below, above, stride = log.first - 1, log.first, 1
  while value(block_at(log, above)) <= bound do
    if above == log.last then
      return nil
    end
    below, above, stride = above, math.min(above + stride, log.last), stride * 2
  end
  while above - below > 1 do
    local middle = math.floor((below + above) / 2)
    if value(block_at(log, middle)) > bound then
      above = middle
    else
      below = middle
    end
  end
  local block = block_at(log, above)
  local low, high = 0, (#block - HEADER) / (5 + block:byte(1)) -- as entries_in, which is not defined for a single hit
  while high - low > 1 do
    local middle = math.floor((low + high) / 2)
    if value(block, middle) > bound then
      high = middle
    else
      low = middle
    end
  end
  return high, block, above
end

local function change(log, index, block)
  log[index] = block
  log.changed = math.min(index, log.changed) -- this block and all after it
end

-- Forget the entries before the oldest live one.
local function forget_expired(log, head, base, oldest)
  local tail = block_at(log, log.last)
  change(log, log.last, tail:sub(1, 14) .. struct.pack('>I7I6', oldest, base % TURN) .. tail:sub(HEADER + 1))
  log.first = head or log.first
  return log
end

local function append(log, head, base, used, at, cost, oldest)
  local total = 0
  if used == 0 then
    log = log or {changed = 0, last = -1}
    log.last = math.max(log.last + 1, 0)
    log.first, oldest, base = log.last, at, 0
  else
    if head then
      forget_expired(log, head, base, oldest)
    end
    local tail = block_at(log, log.last)
    local newest, width, begins, before
    newest, total, width, begins, before = entry_of(tail)
    if newest == at then -- this entry is replaced
      tail = tail:sub(1, -6 - width)
    end
    local sum = total - before + cost
    if sum < 256 ^ width and at - begins < FAR and #tail < HEADER + ENTRIES * (5 + width) then
      change(log, log.last, tail .. struct.pack(width == 3 and '>I5I3' or '>I5I6', at - begins, sum))
      return log
    end
    if newest == at then
      local there = #tail > HEADER and select(2, entry_of(tail)) or before
      if there > total then
        damaged(log.key)
      end
      total, cost = there, total - there + cost
      change(log, log.last, tail)
    end
    if #tail > HEADER then
      log.last = log.last + 1
    end
  end
  local width = cost < 2 ^ 23 and 3 or 6
  local format = width == 3 and '>BI7I6I7I6I5I3' or '>BI7I6I7I6I5I6'
  change(log, log.last, struct.pack(format, width, at, total % TURN, oldest, base % TURN, 0, cost))
  return log
end

-- Return the time of a decision at `now`, the block with the oldest live entry if earlier ones have expired, the total
-- before that entry, the usage, and the times of the newest and of the oldest live entry.
local function usage_at(rule, log, now)
  if not log then
    return now, nil, 0, 0
  end
  local window, at = rule[2], now
  local newest, total, _, _, _, oldest, base = entry_of(block_at(log, log.last))
  if newest > now then
    if newest > now + window then
      return now, nil, 0, 0
    end
    at = newest -- the clock stepped back: decide at the newest unit's time
  end
  local head
  if oldest <= at - window then
    local entry, block
    entry, block, head = seek(log, entry_of, at - window)
    if not entry then
      return at, nil, 0, 0
    end
    oldest, base = entry_of(block, entry), total_before(block, entry)
  end
  local used = (total - base) % TURN
  if oldest > newest or used > MAX_USAGE then
    damaged(log.key)
  end
  return at, head, base, used, newest, oldest
end

local function decide(rule, log, now, cost, consume)
  local limit, window = rule[1], rule[2]
  local at, head, base, used, newest, oldest = usage_at(rule, log, now)
  local left = limit - used - cost
  if left >= 0 and consume then
    return append(log, head, base, used, at, cost, oldest), 1, left, 0, at + window - now, 0
  end
  local reset_after = used > 0 and newest + window - now or 0
  if left >= 0 then
    return log, 1, limit - used, 0, reset_after, 0
  end
  if cost > limit then
    return log, 0, math.max(0, limit - used), NEVER, reset_after, 0
  end
  local function units_from_base(block, entry)
    local _, total = entry_of(block, entry)
    local units = (total - base) % TURN
    return units < TURN / 2 and units or 0 -- an expired entry lies before the base
  end
  local entry, block = seek(log, units_from_base, -left - 1) -- the entry whose expiry makes enough room
  local leaves = entry and entry_of(block, entry) + window
  if not entry or leaves <= at or leaves > at + window then
    damaged(log.key)
  end
  return log, 0, math.max(0, limit - used), leaves - now, reset_after, 0
end

local function read(key)
  local tail = readable(redis.pcall('LINDEX', key, '-1'))
  if not tail then
    return nil
  end
  if tail == DAMAGED or not is_block(tail) then
    return DAMAGED
  end
  return {key = key, changed = 0, last = -1, [-1] = tail}
end

local function write(key, log, ttl_ms)
  local first, last = log.first, log.last
  local kept = log.key and not (first and first >= 0) -- whether a stored block remains
  if log.key and not kept then
    redis.call('DEL', key)
  end
  for index = math.max(first or log.changed, log.changed), last do
    if index < 0 then
      redis.call('LSET', key, index == -1 and '-1' or index, log[index])
    else
      redis.call('RPUSH', key, log[index])
    end
  end
  if kept and (last < -1 or first and first > -log.length) then
    local pushed = math.max(last + 1, 0)
    redis.call('LTRIM', key, first and first - pushed or 0, last - pushed)
  end
  redis.call('PEXPIRE', key, ttl_ms)
end

local step = {decide = decide, read = read, write = write}
if alone then -- a single hit needs no more
  return step
end

function step.charge(rule, log, now, cost)
  local at, head, base, used, _, oldest = usage_at(rule, log, now)
  local room = MAX_USAGE - used
  return room > 0 and append(log, head, base, used, at, math.min(cost, room), oldest) or log
end

local function entries_in(block)
  return (#block - HEADER) / (5 + block:byte(1))
end

-- Remove the newest units, and entries that have none left.
local function take(log, units)
  local ends -- the total up to the end of a block, as the one after it says
  while true do
    local tail = block_at(log, log.last)
    local time, total, width, begins, before = entry_of(tail)
    local rest, last = tail:sub(1, -6 - width), entries_in(tail)
    local there = total - total_before(tail, last)
    if there < 0 or ends and total % TURN ~= ends then
      damaged(log.key)
    end
    if there > units then
      if units > 0 then
        local entry = struct.pack(width == 3 and '>I5I3' or '>I5I6', time - begins, total - before - units)
        change(log, log.last, rest .. entry)
      end
      return log
    end
    units = units - there
    if last > 1 then
      change(log, log.last, rest)
      ends = nil
    else
      log.last = log.last - 1
      ends = before
    end
  end
end

function step.refund(rule, log, now, cost)
  local _, head, base, used, _, oldest = usage_at(rule, log, now)
  if cost >= used then
    return nil
  end
  return forget_expired(take(log, cost), head, base, oldest)
end

function step.give_back(rule, log, now, cost, charged_at)
  local at, head, base, used, _, oldest = usage_at(rule, log, now)
  if used == 0 or charged_at <= at - rule[2] then
    return log
  end
  local entry, block, index = seek(log, entry_of, charged_at - 1)
  if not entry then
    return log
  end
  local time, total, width = entry_of(block, entry)
  if time ~= charged_at then
    return log
  end
  local taken = math.min(cost, total - total_before(block, entry))
  if taken < 0 or taken > used then
    damaged(log.key)
  end
  if taken == used then
    return nil
  end
  if index == log.last and entry == entries_in(block) then
    return forget_expired(take(log, taken), head, base, oldest)
  end
  local _, ends = entry_of(block)
  for later = entry, entries_in(block) do -- an entry with no units left stays; it has no effect
    local from, _, sum, _, _, before = HEADER + later * (5 + width) - width, entry_of(block, later)
    if sum - before < taken then
      damaged(log.key)
    end
    block = block:sub(1, from) .. struct.pack('>I' .. width, sum - before - taken) .. block:sub(from + width + 1)
  end
  change(log, index, block)
  for later = index + 1, log.last do
    block = block_at(log, later)
    local _, sum, _, _, before = entry_of(block)
    if ends % TURN ~= before then
      damaged(log.key)
    end
    change(log, later, block:sub(1, 8) .. struct.pack('>I6', (before - taken) % TURN) .. block:sub(15))
    ends = sum
  end
  return forget_expired(log, head, base, oldest)
end

function step.expires_at(rule, log)
  return entry_of(block_at(log, log.last)) + rule[2]
end

return step
