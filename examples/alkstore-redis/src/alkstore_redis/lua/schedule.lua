-- Schedules. What each says is text that only Python reads, for core's arithmetic of boundaries is Python. So a change
-- names the text that it was worked out from, and is not made if that is no longer what is stored.
local function is_stored(name, text) return call('HGET', P .. 'schedules', name) == text end

function operations.put_schedule(name, old, new)
  if not is_stored(name, old) then return 0 end
  if new then call('HSET', P .. 'schedules', name, new) else call('HDEL', P .. 'schedules', name) end
  wake('schedule', '')
  return 1
end

function operations.fire_schedule(name, old, new, boundaries, job, lock, fence)
  if lock and not is_live(lock, fence) then return 'lost' end
  if not is_stored(name, old) then return 'changed' end
  local last = draw_ids(#boundaries)
  for at, boundary in ipairs(boundaries) do add(make(job, last + at, boundary)) end
  call('HSET', P .. 'schedules', name, new) -- last: nothing undoes it if the queue's keys are of another type
  return 'fired'
end

function operations.list_schedules(lock, fence)
  return { now, call('HGETALL', P .. 'schedules'), (not lock or is_live(lock, fence)) and 1 or 0 }
end
