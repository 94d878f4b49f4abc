-- Locks. `locks` has the end of each lease, until it is released: no end sorts before every instant. The fence outlives its
-- holders: it is what was last drawn.
local function till(name) return call('HGET', P .. 'locks', name) or '' end
local function fence(name) return text(call('HGET', P .. 'last', 'lock:' .. name) or 0) end
local function is_live(name, given) return now < till(name) and given == fence(name) end

function operations.take_lock(name, ttl)
  if now < till(name) then return { expires_at = till(name) } end
  call('HSET', P .. 'locks', name, shift(now, ttl))
  return { fence = draw('lock:' .. name), expires_at = till(name) }
end

function operations.renew_lock(name, given, ttl)
  if not is_live(name, given) then return false end
  local moved = shift(now, ttl)
  if moved < till(name) then wake('lock', name) end -- those who wait were told of a later end
  if ttl == ZERO then call('HDEL', P .. 'locks', name) else call('HSET', P .. 'locks', name, moved) end
  return moved
end

function operations.list_locks()
  local held = {}
  for name, till in pairs(map('locks')) do
    if now < till then held[#held + 1] = { name = name, fence = fence(name), expires_at = till } end
  end
  return held
end
