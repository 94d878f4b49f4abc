-- What every operation shares. KEYS[1] begins every key; ARGV is the operation's name, its arguments in JSON, and the
-- transaction that it rides, empty for none.
--
-- A number of the seam, 64 bits of it, is a text of 20 digits: the number + 922337204 * 10^10. So it sorts as a text, in sets
-- whose members all have score 0, and nothing is lost: Lua's own numbers, and scores, are exact up to 2^53 only.
local call, P, tx, operations = redis.call, KEYS[1], ARGV[3], {}
local BASE, BIAS = 10000000000, 922337204
local FIRST, LAST = '09161236443200000000', '09476774340799999999' -- numbers.MIN_INSTANT and MAX_INSTANT

local function joined(high, low) return ('%010.0f%010.0f'):format(math.max(high, 0), low) end
local function text(number) return joined(math.floor(number / BASE) + BIAS, number % BASE) end
local ZERO = text(0)

-- A number of things; Redis takes no greater ones.
local function count(text) return math.min((text:sub(1, 10) - BIAS) * BASE + text:sub(11), 2147483647) end

local function sum(one, other, sign) -- sign -1: the difference
  local low = one:sub(11) + sign * other:sub(11)
  return joined(one:sub(1, 10) + sign * (other:sub(1, 10) - BIAS) + math.floor(low / BASE), low % BASE)
end

local function shift(instant, delta, sign) -- numbers.shift
  local moved = sum(instant, delta, sign or 1)
  return moved < FIRST and FIRST or moved > LAST and LAST or moved
end

local function draw(counter) return text(call('HINCRBY', P .. 'last', counter, 1)) end

local function map(key)
  local flat, found = call('HGETALL', P .. key), {}
  for at = 1, #flat, 2 do found[flat[at]] = flat[at + 1] end
  return found
end

local woken = {}
local function wake(kind, name) woken[kind .. ':' .. name] = true end

-- What an open transaction did is marked, until its end lands it or takes it back.
local function mark(kind, name) call('SADD', P .. 'marks:' .. tx, kind .. ':' .. name) end

-- A transaction lasts while its process listens: a killed one has no subscriber on its own channel any more.
local function is_alive(txid)
  return call('PUBSUB', 'NUMSUB', P .. 'store:' .. txid:match('^[^/]*'))[2] > 0
end
