-- Sliding window counter: sliding_window_counter.py on Redis, in the same order with the same names.
-- A state is {start, count, before}.

local function usage_at(rule, state, now)
  local window = rule[2]
  local start = now - now % window
  if state then
    local stored, count, before = state[1], state[2], state[3]
    if start <= stored and stored < start + 2 * window then -- the next one: the clock stepped back, decide at its start
      return stored - stored % window, count, before
    end
    if start - window <= stored and stored < start then
      return start, 0, count
    end
  end
  return start, 0, 0
end

-- The largest weight of a window with `count` in it that leaves room: ((room + 1) * window - 1) // count.
local function weight_that_leaves(room, window, count)
  local weight, rest = multiply_divide(room + 1, window, count)
  return rest > 0 and weight or weight - 1
end

-- Return the time until floor(count + before * weight / window) + cost <= limit.
local function retry_after(rule, start, count, before, now, cost)
  local limit, window = rule[1], rule[2]
  local room = limit - cost - count
  if room >= 0 then
    return start + window - weight_that_leaves(room, window, before) - now
  end
  return start + 2 * window - weight_that_leaves(limit - cost, window, count) - now
end

local function reset_after(rule, count, before, elapsed)
  if count > 0 then
    return 2 * rule[2] - elapsed
  end
  return before > 0 and rule[2] - elapsed or 0
end

local function decide(rule, state, now, cost, consume)
  local limit, window = rule[1], rule[2]
  local start, count, before = usage_at(rule, state, now)
  local elapsed = now - start
  local used = count
  if before > 0 then
    used = used + multiply_divide(before, elapsed > 0 and window - elapsed or window, window)
  end
  if used + cost > limit then
    local retry = cost > limit and NEVER or retry_after(rule, start, count, before, now, cost)
    return state, 0, math.max(0, limit - used), retry, reset_after(rule, count, before, elapsed), 0
  end
  if consume then
    return {start, count + cost, before}, 1, limit - used - cost, 0, 2 * window - elapsed, 0
  end
  return state, 1, limit - used, 0, reset_after(rule, count, before, elapsed), 0
end

local step = {decide = decide, size = 3, write = write_numbers}
if alone then -- a single hit needs no more
  return step
end

function step.charge(rule, state, now, cost)
  local start, count, before = usage_at(rule, state, now)
  return {start, math.min(count + cost, MAX_USAGE), before}
end

function step.refund(rule, state, now, cost)
  local start, count, before = usage_at(rule, state, now)
  count = math.max(0, count - cost)
  return (count > 0 or before > 0) and {start, count, before} or nil
end

function step.give_back(rule, state, now, cost, charged_at)
  local start = usage_at(rule, state, now)
  if charged_at - charged_at % rule[2] == start then
    return step.refund(rule, state, now, cost)
  end
  return state
end

function step.expires_at(rule, state)
  return state[1] - state[1] % rule[2] + (state[2] > 0 and 2 or 1) * rule[2]
end

return step
