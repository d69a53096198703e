-- What the algorithms share. Lua's numbers are doubles: whole numbers are exact up to 2^53.

local NEVER = -1
local SECOND_US = 1000000
local MAX_USAGE = 2 ^ 42
local MAX_DRAIN_US = 2 ^ 51
local MAX_RATE_PART = 2 ^ 46
local EXACT = 2 ^ 53

-- Return floor(a * b / c) and the remainder, exactly, for b and c up to 2^46.
local function multiply_divide(a, b, c)
  local product = a * b
  if product < EXACT then
    local rest = product % c
    return (product - rest) / c, rest
  end
  local quotient, rest = 0, 0
  for place = 8, 0, -1 do -- long division, six bits of `a` at a time
    local part = rest * 64 + math.floor(a / 64 ^ place) % 64 * b
    rest = part % c
    quotient = quotient * 64 + (part - rest) / c
  end
  return quotient, rest
end

-- A value that is not ours, or was damaged, concerns its own key alone: it is replaced by this mark, and the error says
-- which of the call's keys have one. Nothing has been written by then, because all keys are read before any is written.
local DAMAGED = 0

local function damaged(name)
  for number, key in ipairs(KEYS) do
    if key == name then
      error('RATEKEEPER damaged ' .. number)
    end
  end
end

-- Return what a protected call that reads a key has returned; a value of another type is damaged.
local function readable(value)
  if type(value) ~= 'table' then
    return value
  end
  if value.err:find('WRONGTYPE', 1, true) then
    return DAMAGED
  end
  error(value.err)
end

-- A state of a few numbers is stored as MessagePack, which Lua reads and writes several times as fast as text. It begins
-- with a byte that never occurs in text.
local FORMAT = -1

local function unpack_numbers(value, size) -- comparing what is no number is an error
  local format, first, second, third, fourth, more = cmsgpack.unpack(value)
  local state = {first, second, third, fourth}
  for index = 1, size do
    local number = state[index]
    if not (number >= 0 and number <= EXACT and number % 1 == 0) then
      return DAMAGED
    end
  end
  return (format ~= FORMAT or state[size + 1] or more) and DAMAGED or state
end

local function read_numbers(value, step)
  if not value or value == DAMAGED then
    return value or nil
  end
  local is_state, state = pcall(unpack_numbers, value, step.size)
  if not is_state or state == DAMAGED or step.is_state and not step.is_state(state) then
    return DAMAGED
  end
  return state
end

local function write_numbers(key, state, ttl_ms)
  redis.call('SET', key, cmsgpack.pack(FORMAT, unpack(state)), 'PX', ttl_ms)
end
