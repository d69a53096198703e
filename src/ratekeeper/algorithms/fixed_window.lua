-- Fixed window: fixed_window.py on Redis, in the same order with the same names. A state is {start, count}.

local function usage_at(rule, state, now)
  local window = rule[2]
  local start = now - now % window
  if state then
    local stored = state[1] - state[1] % window
    if start <= stored and stored <= start + window then
      return stored, state[2]
    end
  end
  return start, 0
end

local function decide(rule, state, now, cost, consume)
  local limit, window = rule[1], rule[2]
  local start, count = usage_at(rule, state, now)
  local elapsed = now - start
  local total = count + cost
  if total > limit then
    local retry_after = cost <= limit and window - elapsed or NEVER
    return state, 0, math.max(0, limit - count), retry_after, count > 0 and window - elapsed or 0, 0
  end
  if consume then
    return {start, total}, 1, limit - total, 0, window - elapsed, 0
  end
  return state, 1, limit - count, 0, count > 0 and window - elapsed or 0, 0
end

local step = {decide = decide, size = 2, write = write_numbers}
if alone then -- a single hit needs no more
  return step
end

function step.charge(rule, state, now, cost)
  local start, count = usage_at(rule, state, now)
  return {start, math.min(count + cost, MAX_USAGE)}
end

function step.refund(rule, state, now, cost)
  local start, count = usage_at(rule, state, now)
  return count > cost and {start, count - cost} or nil
end

function step.give_back(rule, state, now, cost, charged_at)
  local start = usage_at(rule, state, now)
  if charged_at - charged_at % rule[2] == start then
    return step.refund(rule, state, now, cost)
  end
  return state
end

function step.expires_at(rule, state)
  return state[1] - state[1] % rule[2] + rule[2]
end

return step
