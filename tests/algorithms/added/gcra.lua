-- GCRA: gcra.py on Redis, in the same order with the same names. A state is {whole, part, limit}.

local function usage_at(rule, state, now)
  if not state then
    return now, 0
  end
  local whole, part = state[1], state[2]
  if state[3] ~= rule[1] then
    local scaled, rest = multiply_divide(part, rule[1], state[3])
    part = rest > 0 and scaled + 1 or scaled
    if part == rule[1] then
      whole, part = whole + 1, 0
    end
  end
  if whole < now then
    return now, 0
  end
  return whole, part
end

local function later(rule, whole, part, cost)
  local time, rest = multiply_divide(cost, rule[2], rule[1])
  whole, part = whole + time, part + rest
  if part >= rule[1] then
    whole, part = whole + 1, part - rule[1]
  end
  return whole, part
end

local function rounded_up(whole, part)
  return part > 0 and whole + 1 or whole
end

local function decide(rule, state, now, cost, consume)
  local limit, window = rule[1], rule[2]
  local whole, part = usage_at(rule, state, now)
  local left = -1
  if whole <= now + window then
    local rest
    left, rest = multiply_divide(now + window - whole, limit, window)
    if part > rest then
      left = left - math.ceil((part - rest) / window)
    end
  end
  local reset_after = rounded_up(whole, part) - now
  if cost > left then
    local retry_after = NEVER
    if cost <= limit then
      retry_after = rounded_up(later(rule, whole, part, cost)) - window - now
    end
    return state, 0, math.max(0, left), retry_after, reset_after, 0
  end
  if consume then
    whole, part = later(rule, whole, part, cost)
    return {whole, part, limit}, 1, left - cost, 0, rounded_up(whole, part) - now, 0
  end
  return state, 1, left, 0, reset_after, 0
end

local step = {decide = decide, size = 3, write = write_numbers}
if alone then -- one hit asks for no more
  return step
end

function step.charge(rule, state, now, cost)
  local whole, part = usage_at(rule, state, now)
  whole, part = later(rule, whole, part, cost)
  if whole >= now + MAX_DRAIN_US then
    whole, part = now + MAX_DRAIN_US, 0
  end
  return {whole, part, rule[1]}
end

local function lower(rule, state, now, time, rest)
  local whole, part = usage_at(rule, state, now)
  whole, part = whole - time, part - rest
  if part < 0 then
    whole, part = whole - 1, part + rule[1]
  end
  return rounded_up(whole, part) > now and {whole, part, rule[1]} or nil
end

function step.refund(rule, state, now, cost)
  local time, rest = multiply_divide(cost, rule[2], rule[1])
  return lower(rule, state, now, time, rest)
end

function step.give_back(rule, state, now, cost, charged_at)
  if charged_at > now then
    return state
  end
  local time, rest = multiply_divide(cost, rule[2], rule[1])
  time = time - (now - charged_at)
  if time < 0 then
    time, rest = 0, 0
  end
  return lower(rule, state, now, time, rest)
end

function step.expires_at(rule, state)
  return rounded_up(state[1], state[2])
end

return step
