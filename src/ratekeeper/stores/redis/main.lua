-- Decide any number of requests, each with any number of demands, in order, at one moment.
--
-- ARGV: the time in microseconds, or nothing for the server's; the number of rules, and for each its algorithm and four
-- numbers; then runs of requests that are alike: the operation, how many requests, how many demands each, for each demand
-- its rule and its cost, and for a give-back of each demand when it was charged and when that ends.
-- KEYS: one for each demand of each request.
-- Returns the time and for each request how long a denial or a peek stays exactly like this (0: it is neither; at most a
-- second), and for each of its demands five integers: allowed, remaining, retry_after (-1: never), reset_after, delay.

local position = 0

local function argument()
  position = position + 1
  return ARGV[position]
end

local function number()
  local value = tonumber(argument())
  if not value or not (value >= 0 and value <= EXACT) or value % 1 ~= 0 then
    error('RATEKEEPER argument ' .. position .. ' is not a whole number')
  end
  return value
end

local given = ARGV[1] ~= ''
local now
if given then
  now = number()
else
  argument()
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local steps, rules = {}, {}
for index = 1, number() do
  local algorithm = argument()
  steps[algorithm] = steps[algorithm] or algorithms[algorithm]()
  rules[index] = {number(), number(), number(), number(), step = steps[algorithm]}
end

local runs, rule_of, names = {}, {}, {}
local strings = {}
local key = 0
while position < #ARGV do
  local run = {operation = argument(), requests = number(), demands = number(), rules = {}, costs = {}}
  for demand = 1, run.demands do
    run.rules[demand] = rules[number()]
    run.costs[demand] = number()
  end
  if run.operation == 'give_back' then
    run.charged, run.ends = {}, {}
    for demand = 1, run.demands do
      run.charged[demand], run.ends[demand] = number(), number()
    end
  end
  for _ = 1, run.requests do
    for demand = 1, run.demands do
      key = key + 1
      local name, rule = KEYS[key], run.rules[demand]
      if not rule_of[name] then
        names[#names + 1] = name
        if rule.step.read == read_numbers then
          strings[#strings + 1] = name
        end
      end
      rule_of[name] = rule
    end
  end
  runs[#runs + 1] = run
end

-- Every key is read before anything is written.
local states, stored, dirty, emptied = {}, {}, {}, {}
for first = 1, #strings, 1000 do
  local last = math.min(first + 999, #strings)
  local values = redis.call('MGET', unpack(strings, first, last))
  for index = first, last do
    stored[strings[index]] = values[index - first + 1]
  end
end
for _, name in ipairs(names) do
  states[name] = rule_of[name].step.read(name, stored[name])
end

local reply = {now}
local function answer(_, ...)
  for index = 1, 5 do
    reply[#reply + 1] = select(index, ...)
  end
end

local function keep(name, state, rule)
  rule_of[name] = rule -- who writes last knows when the state ends
  if states[name] and not state then
    emptied[name] = true
  end
  states[name] = state
  dirty[name] = true
end

-- How long until more remains.
local function steady_for(rule, state, remaining)
  local _, _, _, retry_after = rule.step.decide(rule, state, now, remaining + 1, false)
  return retry_after
end

-- One demand is decided and charged in one step; of several, all are asked before any is charged.
local function hit_one(run, first)
  local rule, name, cost = run.rules[1], KEYS[first + 1], run.costs[1]
  local state, allowed, remaining, retry_after, reset_after, delay = rule.step.decide(rule, states[name], now, cost, true)
  if allowed == 1 then
    reply[#reply + 1] = 0
    keep(name, state, rule)
  else
    local steady = cost == remaining + 1 and retry_after or steady_for(rule, state, remaining)
    reply[#reply + 1] = steady == NEVER and SECOND_US or math.min(steady, SECOND_US)
  end
  answer(state, allowed, remaining, retry_after, reset_after, delay)
end

-- Ask all demands; return whether one is denied, and how long all of them answer like this.
local function ask_all(run, first)
  local denied, steady = false, SECOND_US
  for demand = 1, run.demands do
    local rule, state = run.rules[demand], states[KEYS[first + demand]]
    local _, allowed, remaining = rule.step.decide(rule, state, now, run.costs[demand], false)
    denied = denied or allowed == 0
    local time = steady_for(rule, state, remaining)
    steady = time == NEVER and steady or math.min(steady, time)
  end
  return denied, steady
end

local function hit_all(run, first)
  local denied, steady = ask_all(run, first)
  reply[#reply + 1] = denied and steady or 0
  for demand = 1, run.demands do
    local rule, name = run.rules[demand], KEYS[first + demand]
    local state, allowed, remaining, retry_after, reset_after, delay =
      rule.step.decide(rule, states[name], now, run.costs[demand], not denied)
    if not denied then
      keep(name, state, rule)
    end
    answer(state, allowed, remaining, retry_after, reset_after, delay)
  end
end

local function change(run, rule, demand, name)
  local state, cost = states[name], run.costs[demand]
  if run.operation == 'charge' then
    keep(name, rule.step.charge(rule, state, now, cost), rule)
  elseif not state then
    return
  elseif run.operation == 'reset' then
    keep(name, nil, rule)
  elseif run.operation == 'refund' then
    keep(name, rule.step.refund(rule, state, now, cost), rule)
  else
    keep(name, rule.step.give_back(rule, state, now, cost, run.charged[demand], run.ends[demand]), rule)
  end
end

local function ask_or_change(run, first)
  local asks = run.operation == 'peek'
  for demand = 1, asks and 0 or run.demands do
    change(run, run.rules[demand], demand, KEYS[first + demand])
  end
  local _, steady = ask_all(run, first)
  reply[#reply + 1] = asks and steady or 0
  for demand = 1, run.demands do
    local rule = run.rules[demand]
    answer(rule.step.decide(rule, states[KEYS[first + demand]], now, asks and run.costs[demand] or 1, false))
  end
end

key = 0
for _, run in ipairs(runs) do
  local act = run.operation ~= 'hit' and ask_or_change or run.demands == 1 and hit_one or hit_all
  for _ = 1, run.requests do
    act(run, key)
    key = key + run.demands
  end
end

for _, name in ipairs(names) do
  if dirty[name] then
    local state, rule = states[name], rule_of[name]
    if emptied[name] then
      redis.call('DEL', name)
    end
    if state then
      local ttl_ms = math.ceil((rule.step.expires_at(rule, state) - now) / 1000)
      rule.step.write(name, state, math.max(ttl_ms, given and 60000 or 1))
    end
  end
end
return reply
