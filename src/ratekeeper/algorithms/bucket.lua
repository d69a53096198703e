-- The arithmetic of both buckets: bucket.py on Redis, in the same order with the same names. time_to_drain and less are
-- single expressions in Python and functions here.
-- A level counted in fractions of a unit, each 1 / period_us, can exceed 2^53, so it is two numbers here: whole units,
-- and the part of one more. A state is {whole, part, at, period_us}.

-- ceil((whole * period_us + part) / units)
local function time_to_drain(rule, whole, part)
  local units = rule[2]
  local time, rest = multiply_divide(whole, rule[3], units)
  rest = rest + part
  local more = rest % units
  return time + (rest - more) / units + (more > 0 and 1 or 0)
end

-- The level minus what drains in this time, never below empty.
local function less(rule, whole, part, time)
  local gone, rest = multiply_divide(time, rule[2], rule[3])
  whole, part = whole - gone, part - rest
  if part < 0 then
    whole, part = whole - 1, part + rule[3]
  end
  if whole < 0 then
    return 0, 0
  end
  return whole, part
end

-- The level, or the ceiling of accumulated usage if that is lower.
local function capped(rule, whole, part)
  local most, rest = multiply_divide(2 * MAX_DRAIN_US, rule[2], rule[3])
  if most >= MAX_USAGE then
    most, rest = MAX_USAGE, 0
  end
  if whole > most or (whole == most and part > rest) then
    return most, rest
  end
  return whole, part
end

local function usage_at(rule, state, now)
  if not state then
    return 0, 0, now
  end
  local capacity, units, period_us = rule[1], rule[2], rule[3]
  local whole, part, at = state[1], state[2], state[3]
  if state[4] ~= period_us then -- written at another rate under the same name; round a fraction of a unit up
    local scaled, rest = multiply_divide(part, period_us, state[4])
    part = rest > 0 and scaled + 1 or scaled
    if part == period_us then
      whole, part = whole + 1, 0
    end
  end
  if whole >= capacity then
    whole, part = capped(rule, whole, part)
  end
  if at <= now then
    whole, part = less(rule, whole, part, now - at)
    return whole, part, now
  end
  local gone, rest = multiply_divide(at - now, units, period_us)
  if gone > capacity or (gone == capacity and rest > 0) then
    return 0, 0, now
  end
  return whole, part, at -- the clock stepped back: decide at the time of the state
end

local function decide(rule, state, now, cost, consume)
  local capacity, period_us, shapes = rule[1], rule[3], rule[4]
  local whole, part, at = usage_at(rule, state, now)
  local lead = at - now
  local left = capacity - whole - (part > 0 and 1 or 0)
  if left < cost then
    local retry_after = cost > capacity and NEVER or lead + time_to_drain(rule, whole + cost - capacity, part)
    return state, 0, math.max(0, left), retry_after, lead + time_to_drain(rule, whole, part), 0
  end
  local delay = shapes == 1 and lead + time_to_drain(rule, whole, part) or 0
  if consume then
    local after = {whole + cost, part, at, period_us}
    return after, 1, left - cost, 0, lead + time_to_drain(rule, whole + cost, part), delay
  end
  return state, 1, left, 0, lead + time_to_drain(rule, whole, part), delay
end

local function is_state(state)
  return state[2] < state[4] and state[4] <= MAX_RATE_PART -- so the period is not 0
end

local step = {decide = decide, size = 4, is_state = is_state, write = write_numbers}
if alone then -- a single hit needs no more
  return step
end

function step.charge(rule, state, now, cost)
  local whole, part, at = usage_at(rule, state, now)
  whole, part = capped(rule, whole + cost, part)
  return {whole, part, at, rule[3]}
end

local function lower(rule, state, now, whole_less, part_less)
  local whole, part, at = usage_at(rule, state, now)
  whole, part = whole - whole_less, part - part_less
  if part < 0 then
    whole, part = whole - 1, part + rule[3]
  end
  return whole >= 0 and (whole > 0 or part > 0) and {whole, part, at, rule[3]} or nil
end

function step.refund(rule, state, now, cost)
  return lower(rule, state, now, cost, 0)
end

function step.give_back(rule, state, now, cost, charged_at, ends_at)
  local _, _, at = usage_at(rule, state, now)
  if charged_at > at or (rule[4] == 1 and (not state or step.expires_at(rule, state) ~= ends_at)) then
    return state
  end
  local whole, part = less(rule, cost, 0, at - charged_at)
  return lower(rule, state, now, whole, part)
end

function step.expires_at(rule, state)
  local whole, part, at = usage_at(rule, state, state[3])
  return at + time_to_drain(rule, whole, part)
end

return step
