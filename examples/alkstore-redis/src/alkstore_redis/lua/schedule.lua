-- Schedules. What each says is text that only core reads: alkstore.comparing.
local function is_led(lease) return not lease or is_live(unpack(lease)) end

function operations.read_schedules(lease)
  return { now = now, texts = map('schedules'), led = is_led(lease) }
end

function operations.write_schedule(name, old, new, jobs, boundaries, lease)
  if not is_led(lease) or call('HGET', P .. 'schedules', name) ~= old then return false end
  if #jobs == 0 then wake('schedule', '') end
  operations.insert_jobs(jobs, boundaries) -- first: nothing is undone if the queue's keys are of another type
  if new then call('HSET', P .. 'schedules', name, new) else call('HDEL', P .. 'schedules', name) end
  return true
end
