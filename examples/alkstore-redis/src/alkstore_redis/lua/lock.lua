-- Locks. Of each name the fence, which outlives its holders, and the end of the lease; no end once it was released.
local function lease(name)
  local found = call('HGET', P .. 'locks', name) or ZERO
  return found:sub(1, 20), found:sub(21)
end

local function is_live(name, fence)
  local last, till = lease(name)
  return last == fence and now < till -- no end sorts before every instant
end

function operations.take_lock(name, ttl)
  local fence, till = lease(name)
  if now < till then return { false, till } end
  fence, till = shift(fence, ONE), shift(now, ttl)
  call('HSET', P .. 'locks', name, fence .. till)
  return { fence, till }
end

function operations.renew_lock(name, fence, ttl)
  if not is_live(name, fence) then return false end
  local _, before = lease(name)
  local till = shift(now, ttl)
  call('HSET', P .. 'locks', name, fence .. (ttl == ZERO and '' or till))
  if till < before then wake('lock', name) end -- those who wait were told of a later end
  return till
end

function operations.list_locks()
  local all, held = call('HGETALL', P .. 'locks'), {}
  for at = 1, #all, 2 do
    local fence, till = all[at + 1]:sub(1, 20), all[at + 1]:sub(21)
    if now < till then held[#held + 1] = { all[at], fence, till } end
  end
  return held
end
