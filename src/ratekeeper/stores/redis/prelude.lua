-- What the algorithms share. Lua's numbers are doubles: whole numbers are exact up to 2^53.

local NEVER = -1
local SECOND_US = 1000000
local MAX_USAGE = 2 ^ 42
local MAX_DRAIN_US = 2 ^ 51
local EXACT = 2 ^ 53
local FORMATS = {[2] = '%.0f:%.0f', [3] = '%.0f:%.0f:%.0f', [4] = '%.0f:%.0f:%.0f:%.0f'}

-- Return floor(a * b / c) and what is left over, exactly, for b and c up to 2^46.
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

local function read_numbers(key, value)
  if not value then
    return nil
  end
  local first, second, third, fourth = value:match('^(%d+):(%d+):?(%d*):?(%d*)$')
  if not first then
    error('RATEKEEPER key ' .. key .. ' holds something else')
  end
  return {tonumber(first), tonumber(second), tonumber(third), tonumber(fourth)}
end

local function write_numbers(key, state, ttl_ms)
  redis.call('SET', key, FORMATS[#state]:format(unpack(state)), 'PX', ttl_ms)
end
