-- Keys that a set of members holds, of which each begins with a text up to, or after, another one.
local function upto(key, most, count) return call('ZRANGEBYLEX', key, '-', '[' .. most .. '\255', 'LIMIT', 0, count or -1) end
local function first(key) return call('ZRANGE', key, 0, 0)[1] end

local woken = {}
local function wake(kind, name) woken[kind .. ':' .. name] = true end
