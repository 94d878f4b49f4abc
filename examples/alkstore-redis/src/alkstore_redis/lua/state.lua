-- What every operation shares: KEYS[1] begins every key, ARGV is the operation's name and its packed arguments.
--
-- A number that is stored, 64 bits of it, is a text of 20 digits: the number + 2^63. So it sorts as a text, in sets whose
-- members all have score 0, and nothing is lost: Lua's own numbers, and scores, are exact up to 2^53 only.
local call, P, operations = redis.call, KEYS[1], {}
local BASE, HIGH, LOW = 10000000000, 922337203, 6854775808 -- 2^63 in two halves of ten digits
local ZERO, ONE = '09223372036854775808', '09223372036854775809'
local FIRST, LAST = '09161236440054775808', '09476775137654775807' -- numbers.MIN_INSTANT and MAX_INSTANT

local function joined(high, low)
  if low >= BASE then high, low = high + 1, low - BASE elseif low < 0 then high, low = high - 1, low + BASE end
  return string.format('%010.0f%010.0f', high, low)
end

local function text(number) -- of a whole one that Lua can hold
  local high = math.floor(number / BASE)
  return joined(high + HIGH, number - high * BASE + LOW)
end

local function shift(instant, delta) -- numbers.shift
  local high = tonumber(instant:sub(1, 10)) + tonumber(delta:sub(1, 10)) - HIGH
  if high < 0 then return FIRST end
  local sum = joined(high, tonumber(instant:sub(11)) + tonumber(delta:sub(11)) - LOW)
  return sum < FIRST and FIRST or sum > LAST and LAST or sum
end
