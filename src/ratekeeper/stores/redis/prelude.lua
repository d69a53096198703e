-- What the algorithms share. Lua's numbers are doubles: whole numbers are exact up to 2^53.

local NEVER = -1
local SECOND_US = 1000000
local MAX_USAGE = 2 ^ 42
local MAX_DRAIN_US = 2 ^ 51
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

-- A state of a few numbers is stored as MessagePack, which Lua reads and writes several times as fast as text. It begins
-- with a byte that never occurs in text.
local FORMAT = -1

local function read_numbers(key, value, size)
  if not value then
    return nil
  end
  local readable, format, first, second, third, fourth, more = pcall(cmsgpack.unpack, value)
  local state = {first, second, third, fourth}
  readable = readable and format == FORMAT
  for index = 1, size do
    readable = readable and type(state[index]) == 'number' and state[index] >= 0
  end
  if not readable or state[size + 1] or more then
    error('RATEKEEPER key ' .. key .. ' holds something else')
  end
  return state
end

local function write_numbers(key, state, ttl_ms)
  redis.call('SET', key, cmsgpack.pack(FORMAT, unpack(state)), 'PX', ttl_ms)
end
