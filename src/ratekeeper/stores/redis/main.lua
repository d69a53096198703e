-- Decide any number of requests, each with any number of demands, in order, at one moment.
--
-- ARGV: values in MessagePack. For one hit on one rule, the usual call of a lone caller: the algorithm, its four numbers
-- and the cost. Otherwise one array: the time in microseconds, or false for the server's; the number of rules, and for
-- each its algorithm and four numbers; then runs of equal requests: how many requests, how often each is repeated, how
-- many demands each has, and for each demand its operation, whether its denial denies the request, its rule and its cost,
-- and for a give-back also when it was charged and when that ends.
-- KEYS: one for each demand of each request; repeats have none of their own.
-- Returns the time and, for each request, how long a denial or a peek stays exactly the same (0: it is neither; at most a
-- second), and for each of its demands five integers: allowed, remaining, retry_after (-1: never), reset_after, delay.

local function whole(value)
  if type(value) ~= 'number' or not (value >= 0 and value <= EXACT) or value % 1 ~= 0 then
    error('RATEKEEPER argument ' .. tostring(value) .. ' is not a whole number')
  end
  return value
end

local function server_time()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- Return how long until more remains.
local function steady_for(step, rule, state, now, remaining)
  local _, _, _, retry_after = step.decide(rule, state, now, remaining + 1, false)
  return retry_after == NEVER and SECOND_US or math.min(retry_after, SECOND_US)
end

local values, first, second, third, fourth, cost = cmsgpack.unpack(ARGV[1])
if cost then -- one hit on one rule: the same steps as below, without the bookkeeping
  local step, rule = step_of(values, true), {whole(first), whole(second), whole(third), whole(fourth)}
  local name, now, state = KEYS[1], server_time(), nil
  if step.read then
    state = step.read(name)
  else
    state = read_numbers(readable(redis.pcall('GET', name)), step)
  end
  if state == DAMAGED then
    damaged(name)
  end
  local after, allowed, remaining, retry_after, reset_after, delay = step.decide(rule, state, now, whole(cost), true)
  if allowed == 1 then
    step.write(name, after, math.ceil(reset_after / 1000)) -- the state ends when the key equals an untouched one
    return {now, 0, 1, remaining, 0, reset_after, delay}
  end
  return {now, steady_for(step, rule, state, now, remaining), 0, remaining, retry_after, reset_after, delay}
end

local position = 0

local function argument()
  position = position + 1
  return values[position]
end

local function number()
  return whole(argument())
end

local now
local given = argument()
if given then
  position = 0
  now = number()
else
  now = server_time()
end

local steps, rules = {}, {}
for index = 1, number() do
  local algorithm = argument()
  local step = steps[algorithm] or step_of(algorithm)
  steps[algorithm] = step
  rules[index] = {number(), number(), number(), number(), step = step}
end

local function ttl_of(rule, state)
  local ttl_ms = math.ceil((rule.step.expires_at(rule, state) - now) / 1000)
  return math.max(ttl_ms, given and 60000 or 1)
end

local function decide_all()
  -- What is known of each key: in the order of first use, by name, and by demand.
  local NAME, RULE, STATE, DIRTY, EMPTIED, TTL = 1, 2, 3, 4, 5, 6
  local keys, by_name, of_demand = {}, {}, {}
  local runs, strings = {}, {}
  local demands = 0
  while position < #values do
    local run = {requests = number(), times = number(), demands = number(), operations = {}, binds = {}, rules = {},
      costs = {}, charged = {}, ends = {}, asks = false, changes = false}
    for demand = 1, run.demands do
      local operation = argument()
      run.operations[demand], run.binds[demand] = operation, argument()
      run.rules[demand], run.costs[demand] = rules[number()], number()
      if operation == 'give_back' then
        run.charged[demand], run.ends[demand] = number(), number()
      end
      run.asks = run.asks or operation == 'hit' or operation == 'peek'
      run.changes = run.changes or operation ~= 'peek'
    end
    for _ = 1, run.requests do
      for demand = 1, run.demands do
        demands = demands + 1
        local name, rule = KEYS[demands], run.rules[demand]
        local key = by_name[name]
        if key then
          key[RULE] = rule
        else
          key = {name, rule, false, false, false, false}
          by_name[name] = key
          keys[#keys + 1] = key
          if rule.step.size then
            strings[#strings + 1] = name
          end
        end
        of_demand[demands] = key
      end
    end
    runs[#runs + 1] = run
  end

  -- Every key is read before anything is written.
  local read, stored, is_damaged = 0, nil, false
  for _, key in ipairs(keys) do
    local name, step = key[NAME], key[RULE].step
    if step.size then
      if read % 1000 == 0 then
        stored = redis.call('MGET', unpack(strings, read + 1, math.min(read + 1000, #strings)))
      end
      read = read + 1
      local value = stored[(read - 1) % 1000 + 1] or readable(redis.pcall('GET', name)) -- MGET returns nothing of another type
      key[STATE] = read_numbers(value, step)
    else
      key[STATE] = step.read(name)
    end
    is_damaged = is_damaged or key[STATE] == DAMAGED
  end

  -- Whoever asks for a damaged key is told so, except to forget it.
  local function report_damaged()
    local numbers, demands = {}, 0
    for _, run in ipairs(runs) do
      for _ = 1, run.requests do
        for demand = 1, run.demands do
          demands = demands + 1
          if of_demand[demands][STATE] == DAMAGED and run.operations[demand] ~= 'reset' then
            numbers[#numbers + 1] = demands
          end
        end
      end
    end
    if #numbers > 0 then
      error('RATEKEEPER damaged ' .. table.concat(numbers, ','))
    end
  end

  if is_damaged then
    report_damaged()
  end

  local reply, length = {now}, 1
  local function answer(_, allowed, remaining, retry_after, reset_after, delay)
    reply[length + 1], reply[length + 2], reply[length + 3] = allowed, remaining, retry_after
    reply[length + 4], reply[length + 5] = reset_after, delay
    length = length + 5
  end

  local function answer_steady(time)
    length = length + 1
    reply[length] = time
  end

  local function keep(key, state, rule)
    key[RULE] = rule -- the last writer's rule says when the state ends
    if key[STATE] and not state then
      key[EMPTIED] = true
    end
    key[STATE], key[DIRTY] = state, true
  end

  -- A single demand is decided and charged in one step; with several, all are peeked at before any is charged.
  local function hit_one(run, first)
    local rule, key = run.rules[1], of_demand[first + 1]
    local state, allowed, remaining, retry_after, reset_after, delay =
      rule.step.decide(rule, key[STATE], now, run.costs[1], true)
    if allowed == 1 then
      answer_steady(0)
      keep(key, state, rule)
    else
      answer_steady(steady_for(rule.step, rule, state, now, remaining))
    end
    answer(state, allowed, remaining, retry_after, reset_after, delay)
  end

  -- Peek at all demands; return whether the request is denied, and how long all answers stay the same.
  local function ask_all(run, first)
    local denied, steady = false, SECOND_US
    for demand = 1, run.demands do
      local rule, state, operation = run.rules[demand], of_demand[first + demand][STATE], run.operations[demand]
      local asks = operation == 'hit' or operation == 'peek'
      local _, allowed, remaining = rule.step.decide(rule, state, now, asks and run.costs[demand] or 1, false)
      denied = denied or asks and allowed == 0 and run.binds[demand]
      steady = math.min(steady, steady_for(rule.step, rule, state, now, remaining))
    end
    return denied, steady
  end

  local function change(run, demand, key)
    local operation, rule, state, cost = run.operations[demand], run.rules[demand], key[STATE], run.costs[demand]
    if operation == 'charge' then
      keep(key, rule.step.charge(rule, state, now, cost), rule)
    elseif not state then
      return
    elseif operation == 'reset' then
      keep(key, nil, rule)
    elseif operation == 'refund' then
      keep(key, rule.step.refund(rule, state, now, cost), rule)
    else
      keep(key, rule.step.give_back(rule, state, now, cost, run.charged[demand], run.ends[demand]), rule)
    end
  end

  -- Carry out each demand, unless the request is denied, and answer it.
  local function do_all(run, first)
    local denied, steady = false, 0
    if run.asks then
      denied, steady = ask_all(run, first)
    end
    answer_steady((denied or not run.changes) and steady or 0)
    for demand = 1, run.demands do
      local operation, rule, key = run.operations[demand], run.rules[demand], of_demand[first + demand]
      local cost = run.costs[demand]
      if operation == 'hit' then
        local state, allowed, remaining, retry_after, reset_after, delay =
          rule.step.decide(rule, key[STATE], now, cost, not denied)
        if not denied and allowed == 1 then
          keep(key, state, rule)
        end
        answer(state, allowed, remaining, retry_after, reset_after, delay)
      else
        if operation ~= 'peek' then
          cost = 1
          if not denied then
            change(run, demand, key)
          end
        end
        answer(rule.step.decide(rule, key[STATE], now, cost, false))
      end
    end
  end

  demands = 0
  for _, run in ipairs(runs) do
    local act = run.demands == 1 and run.operations[1] == 'hit' and hit_one or do_all
    for _ = 1, run.requests do
      for _ = 1, run.times do
        act(run, demands)
      end
      demands = demands + run.demands
    end
  end

  for _, key in ipairs(keys) do
    if key[DIRTY] and key[STATE] and not key[RULE].step.size then
      key[TTL] = ttl_of(key[RULE], key[STATE]) -- it may read once more
    end
  end
  for _, key in ipairs(keys) do
    if key[DIRTY] then
      if key[EMPTIED] then
        redis.call('DEL', key[NAME])
      end
      if key[STATE] then
        key[RULE].step.write(key[NAME], key[STATE], key[TTL] or ttl_of(key[RULE], key[STATE]))
      end
    end
  end
  return reply
end

return decide_all()
