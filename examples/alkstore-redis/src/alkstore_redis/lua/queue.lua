-- Jobs. A job is a hash, and stands in one sorted set of its queue, by what is to happen to it next:
--   ready     a claim takes it: by priority (stored so that high sorts first), run_at, id
--   delayed   by run_at
--   claimed   by deadline; last: the same, on its last attempt
--   stale     by expires_at: claims pass it over, a sweep buries it
--   dead      by id
-- and beside ready and delayed, if it expires, in `expiring`. One that an open transaction has acked stands in none.
local FIELDS = {
  'id', 'queue', 'payload', 'headers', 'state', 'priority', 'run_at', 'expires_at', 'attempts', 'max_attempts',
  'visibility_timeout', 'base_delay', 'worker_id', 'deadline', 'created_at', 'scheduled_for', 'retry_error',
  'last_error', 'died_at', 'token', 'held', 'place', 'spot',
}
local SHOWN = 20 -- of them a JobRecord has
local LAPSED, EXPIRED = 'visibility timeout lapsed on the last attempt', 'expired'

local function key(set, queue) return P .. set .. ':' .. queue end

local function read(id)
  local values, row = call('HMGET', P .. 'job:' .. id, unpack(FIELDS)), {}
  for at, name in ipairs(FIELDS) do row[name] = values[at] end
  return row.id and row or nil
end

local function shown(row)
  local values = {}
  for at = 1, SHOWN do values[at] = row[FIELDS[at]] or false end
  return values
end

local function is_expired(row) return row.expires_at and now >= row.expires_at end

local function where(row)
  local is_last = row.deadline and row.attempts >= row.max_attempts
  if row.held then return false, false end
  if row.state == 'dead' then return 'dead', row.id end
  if row.deadline and (is_last or now < row.deadline) then
    return is_last and 'last' or 'claimed', row.deadline .. row.id
  end
  if is_expired(row) then return 'stale', row.expires_at .. row.id end
  if not row.deadline and now < row.run_at then return 'delayed', row.run_at .. row.id end
  return 'ready', row.priority .. row.run_at .. row.id
end

local function leave(row)
  if row.place then call('ZREM', key(row.place, row.queue), row.spot) end
  if row.expires_at then call('ZREM', key('expiring', row.queue), row.expires_at .. row.id) end
end

local function put(row, changes) -- false for a field that is to be absent
  leave(row)
  for name, value in pairs(changes) do row[name] = value end
  row.place, row.spot = where(row)
  changes.place, changes.spot = row.place, row.spot
  local kept, gone = {}, {}
  for name, value in pairs(changes) do
    if value then kept[#kept + 1], kept[#kept + 2] = name, value else gone[#gone + 1] = name end
  end
  if #kept > 0 then call('HSET', P .. 'job:' .. row.id, unpack(kept)) end
  if #gone > 0 then call('HDEL', P .. 'job:' .. row.id, unpack(gone)) end
  if row.place then call('ZADD', key(row.place, row.queue), 0, row.spot) end
  if row.expires_at and (row.place == 'ready' or row.place == 'delayed') then
    call('ZADD', key('expiring', row.queue), 0, row.expires_at .. row.id)
  end
end

local function bury(row, why)
  local claim = { state = 'dead', last_error = why, died_at = now, retry_error = false }
  claim.worker_id, claim.deadline, claim.token = false, false, false
  put(row, claim)
end

local function remove(row)
  leave(row)
  call('DEL', P .. 'job:' .. row.id)
  call('ZREM', key('jobs', row.queue), row.id)
  if call('EXISTS', key('jobs', row.queue)) == 0 then call('SREM', P .. 'queues', row.queue) end
end

local function draw_ids(count) return call('INCRBY', P .. 'ids', count) - count end -- gives the one before them

local function make(job, id, scheduled_for)
  local queue, payload, headers, priority, delay, run_at, window, most, base, expires = unpack(job)
  return {
    id = text(id), queue = queue, payload = payload, headers = headers, state = 'pending',
    priority = priority, run_at = delay and shift(now, delay) or run_at or now,
    expires_at = expires and shift(now, expires), attempts = ZERO, max_attempts = most,
    visibility_timeout = window, base_delay = base, created_at = now, scheduled_for = scheduled_for,
  }
end

local function add(row)
  call('ZADD', key('jobs', row.queue), 0, row.id)
  call('SADD', P .. 'queues', row.queue)
  local fields = {}
  for name, value in pairs(row) do fields[name] = value end
  put(row, fields)
  wake('queue', row.queue)
end

local function each(members, act) -- members end in the id of a job
  for _, member in ipairs(members) do
    local row = read(member:sub(-20))
    if row then act(row) end
  end
  return #members
end

local function again(row) put(row, {}) end -- time has gone on: it belongs elsewhere

local function refresh(queue)
  local stale = call('ZRANGEBYLEX', key('stale', queue), '(' .. now .. '\255', '+') -- the clock was set back
  each(stale, again)
  for _, set in ipairs({ 'expiring', 'delayed', 'claimed' }) do each(upto(key(set, queue), now), again) end
end

local function bury_lapsed(queue, most)
  return each(upto(key('last', queue), now, most), function(row)
    bury(row, not most and is_expired(row) and EXPIRED or LAPSED) -- to a claim it has lapsed, to a sweep it expired first
  end)
end

function operations.insert_jobs(jobs)
  local ids, last = {}, draw_ids(#jobs)
  for at, job in ipairs(jobs) do
    local row = make(job, last + at, false)
    ids[at] = row.id
    add(row)
  end
  return ids
end

function operations.find_jobs(queue, ids, state, text, after, limit)
  local found = {}
  local function look(row)
    local function has(name) return row[name] and row[name]:find(text, 1, true) end
    if row.queue == queue and (not state or row.state == state) and #found < limit then
      if not text or has('last_error') or has('retry_error') then found[#found + 1] = shown(row) end
    end
  end
  if ids then return each(ids, look) and found end
  local set = key(state == 'dead' and 'dead' or 'jobs', queue)
  while #found < limit do
    local page = call('ZRANGEBYLEX', set, '(' .. after, '+', 'LIMIT', 0, 1000)
    if each(page, look) == 0 then break end
    after = page[#page]
  end
  return found
end

function operations.count_jobs(queue)
  local counts, oldest = { ready = 0, delayed = 0, processing = 0, stale = 0, dead = 0 }, false
  each(call('ZRANGE', key('jobs', queue), 0, -1), function(row)
    local kind = where(row) or 'claimed' -- now, wherever it stands
    if kind == 'last' and now >= row.deadline then kind = 'stale' end
    if kind == 'claimed' or kind == 'last' then kind = 'processing' end
    counts[kind] = counts[kind] + 1
    if kind == 'ready' and (not oldest or row.run_at < oldest) then oldest = row.run_at end
  end)
  return { counts.ready, counts.delayed, counts.processing, counts.stale, counts.dead, oldest, now }
end

function operations.claim_jobs(queue, workers)
  refresh(queue)
  bury_lapsed(queue, 1000)
  local taken, next_at = {}, false
  while #taken < #workers do
    local spot = call('ZPOPMIN', key('ready', queue))[1]
    if not spot then break end
    local row = read(spot:sub(-20))
    row.place = false
    if now < (row.deadline or row.run_at) then
      again(row) -- the clock was set back since it was put here
    else
      put(row, {
        state = 'processing', worker_id = workers[#taken + 1], deadline = shift(now, row.visibility_timeout),
        attempts = shift(row.attempts, ONE), token = text(call('INCR', P .. 'tokens')),
      })
      taken[#taken + 1] = shown(row)
    end
  end
  for _, set in ipairs({ 'delayed', 'claimed' }) do
    local at = (first(key(set, queue)) or ''):sub(1, 20)
    if at ~= '' and (not next_at or at < next_at) then next_at = at end
  end
  return { taken, next_at }
end

local function live(queue, id, token)
  local row = read(id)
  if not row or row.queue ~= queue or row.token ~= token or row.held then return nil end
  return row.deadline and now < row.deadline and row
end

local settles = {}
local FREE = { state = 'pending', worker_id = false, deadline = false, token = false }

local function free(row, changes)
  for name, value in pairs(FREE) do changes[name] = value end
  put(row, changes)
  wake('queue', row.queue)
  return now
end

function settles.Ack(row) remove(row) return now end
function settles.Fail(row, why) bury(row, why) return now end
function settles.Release(row) return free(row, { attempts = shift(row.attempts, text(-1)) }) end
function settles.Retry(row, delay, why) return free(row, { run_at = shift(now, delay), retry_error = why }) end
function settles.Heartbeat(row, window)
  put(row, { deadline = shift(now, window) })
  wake('queue', row.queue) -- it may end sooner than those who wait were told
  return row.deadline
end

local function cancel(row) if row.state == 'pending' then remove(row) return now end end
local function redrive(row)
  if row.state ~= 'dead' then return nil end
  return free(row, { run_at = now, attempts = ZERO, expires_at = false, last_error = false, died_at = false })
end
local unclaimed = { Cancel = cancel, Redrive = redrive }

function operations.settle_jobs(given)
  local instants = {}
  for at, settle in ipairs(given) do
    local kind, queue, id, token, one, two = unpack(settle)
    local row = unclaimed[kind] and read(id) or live(queue, id, token)
    local act = unclaimed[kind] or settles[kind]
    instants[at] = row and row.queue == queue and act(row, one, two) or false
  end
  return instants
end

function operations.sweep_jobs(queue)
  refresh(queue)
  local stale = each(upto(key('stale', queue), now), function(row) bury(row, EXPIRED) end)
  return stale + bury_lapsed(queue)
end

function operations.purge_jobs(queue, age) -- negative; false: all
  local horizon, gone = age and shift(now, age), 0
  each(call('ZRANGE', key('dead', queue), 0, -1), function(row)
    if not horizon or row.died_at < horizon then
      remove(row)
      gone = gone + 1
    end
  end)
  return gone
end
