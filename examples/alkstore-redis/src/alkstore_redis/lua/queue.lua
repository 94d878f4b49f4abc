-- Jobs. All of them, as JSON, are in the hash `job`; their ids in the set `jobs` of their queue. There are three more sets of
-- each queue, of texts that sort and end in an id:
--   ready   what a claim takes: by priority, run_at, id
--   due     by the instant at which time alone makes something else of the job
--   stale   by expires_at: claims pass it over, a sweep buries it
local LAPSED, EXPIRED = 'visibility timeout lapsed on the last attempt', 'expired'

local function key(set, queue) return P .. set .. ':' .. queue end
local function all(queue) return call('ZRANGE', key('jobs', queue), 0, -1) end
local function is_lapsed(row) return row.deadline and now >= row.deadline end
local function is_exhausted(row) return is_lapsed(row) and row.attempts >= row.max_attempts end
local function is_expired(row) return row.expires_at and now >= row.expires_at end

local function read(id) -- what is not committed is there for its own transaction only
  local stored = call('HGET', P .. 'job', id)
  local row = stored and cjson.decode(stored)
  return row and (row.made_by or tx) == tx and row or nil
end

local function each(members, act) -- gives for how many of them it said yes
  local done = 0
  for _, member in ipairs(members) do
    local row = read(member:sub(-20))
    if row and act(row) then done = done + 1 end
  end
  return done
end

local function place(row) -- what the job is now, and where that lets it stand
  local at_deadline = { due = (row.deadline or '') .. row.id }
  if row.made_by or row.acked_by then return 'processing', {} end
  if row.state == 'dead' then return 'dead', {} end
  if row.deadline and not is_lapsed(row) then return 'processing', at_deadline end
  if is_exhausted(row) then return 'stale', at_deadline end
  if is_expired(row) then return 'stale', { stale = row.expires_at .. row.id } end
  if not row.deadline and now < row.run_at then return 'delayed', { due = row.run_at .. row.id } end
  local rank = row.priority:gsub('%d', function(digit) return 9 - digit end) -- the high ones sort first
  local expires = row.expires_at and row.expires_at .. row.id or nil
  return 'ready', { ready = rank .. row.run_at .. row.id, due = expires }
end

local function leave(row)
  for set, spot in pairs(row.spots or {}) do call('ZREM', key(set, row.queue), spot) end
  row.spots = {}
end

local function put(row, changes) -- false for a field that is to be absent
  leave(row)
  for name, value in pairs(changes or {}) do row[name] = value end
  local _, spots = place(row)
  row.spots = spots
  for set, spot in pairs(spots) do call('ZADD', key(set, row.queue), 0, spot) end
  call('HSET', P .. 'job', row.id, cjson.encode(row))
  return row
end

local function land(row)
  put(row, { made_by = false })
  call('HINCRBY', P .. 'queues', row.queue, 1)
  wake('queue', row.queue)
end

local function remove(row)
  leave(row)
  call('HDEL', P .. 'job', row.id)
  call('ZREM', key('jobs', row.queue), row.id)
  local left = not row.made_by and call('HINCRBY', P .. 'queues', row.queue, -1)
  if left == 0 then call('HDEL', P .. 'queues', row.queue) end
  return true
end

local function free(row, changes) -- from its claim
  changes.worker_id, changes.deadline, changes.token = false, false, false
  changes.state = changes.state or 'pending'
  return put(row, changes)
end

local function bury(row, why)
  return free(row, { state = 'dead', last_error = why, died_at = now, retry_error = false })
end

function operations.insert_jobs(jobs, boundaries)
  local ids = {}
  for at, row in ipairs(jobs) do
    row.id, row.state, row.attempts, row.created_at, row.made_by = draw('job'), 'pending', ZERO, now, tx
    row.run_at = row.delay and shift(now, row.delay) or row.run_at or now
    row.expires_at = row.expires and shift(now, row.expires)
    row.scheduled_for = boundaries and boundaries[at]
    call('ZADD', key('jobs', row.queue), 0, row.id)
    if tx == '' then land(row) else put(row) mark('made', row.id) end
    ids[at] = row.id
  end
  return ids
end

function operations.find_jobs(queue, where)
  local found, most, page = {}, count(where.limit), nil
  local function look(row)
    local errors = (row.last_error or '') .. '\0' .. (row.retry_error or '')
    local is_there = row.queue == queue and row.acked_by ~= tx and #found < most
    local is_meant = (not where.state or row.state == where.state) and errors:find(where.error or '', 1, true)
    if is_there and is_meant then found[#found + 1] = row end
  end
  repeat
    page = where.ids or call('ZRANGEBYLEX', key('jobs', queue), '(' .. where.after, '+', 'LIMIT', 0, 1000)
    table.sort(page)
    each(page, look)
    where.after = page[#page]
  until where.ids or not where.after or #found == most
  return found
end

function operations.count_jobs(queue)
  local counts, oldest = { ready = 0, delayed = 0, processing = 0, stale = 0, dead = 0 }, now
  each(all(queue), function(row)
    local kind = place(row)
    counts[kind] = counts[kind] + 1
    if kind == 'ready' and row.run_at < oldest then oldest = row.run_at end
  end)
  counts.oldest_ready_age = counts.ready > 0 and sum(now, oldest, -1)
  return counts
end

local function refresh(queue) -- time has gone on; or the clock was set back, and what had expired has not
  local room = 1000
  each(call('ZRANGEBYLEX', key('stale', queue), '(' .. now .. '\255', '+'), put)
  each(call('ZRANGEBYLEX', key('due', queue), '-', '[' .. now .. '\255'), function(row)
    if not is_exhausted(row) then put(row) elseif room > 0 then room = room - 1 bury(row, LAPSED) end
  end)
end

function operations.claim_jobs(queue, workers)
  local taken = {}
  refresh(queue)
  while #taken < #workers do
    local spot = call('ZPOPMIN', key('ready', queue))[1]
    if not spot then break end
    local row = read(spot:sub(-20))
    local claim = place(row) == 'ready' and { -- or the clock was set back since it was put here
      state = 'processing', worker_id = workers[#taken + 1], deadline = shift(now, row.visibility_timeout),
      attempts = shift(row.attempts, text(1)), token = draw('token'),
    }
    if claim then taken[#taken + 1] = row end
    put(row, claim)
  end
  local due = call('ZRANGE', key('due', queue), 0, 0)[1]
  return { jobs = taken, next_at = due and due:sub(1, 20) }
end

local settles = {}
function settles.Ack(row)
  if tx == '' then remove(row) else put(row, { acked_by = tx }) mark('acked', row.id) end
end
function settles.Cancel(row) remove(row) end
function settles.Fail(row, how) bury(row, how.error) end
function settles.Heartbeat(row, how) put(row, { deadline = shift(now, how.window) }) end
function settles.Release(row) free(row, { attempts = shift(row.attempts, text(-1)) }) end
function settles.Retry(row, how) free(row, { run_at = shift(now, how.delay), retry_error = how.error }) end
function settles.Redrive(row)
  free(row, { run_at = now, attempts = ZERO, expires_at = false, last_error = false, died_at = false })
end

function operations.settle_jobs(given)
  local instants, unclaimed = {}, { Cancel = 'pending', Redrive = 'dead' }
  for at, settle in ipairs(given) do
    local row, state = read(settle.id), unclaimed[settle.kind]
    local is_live = row and row.token == settle.token and row.deadline and now < row.deadline
    local can = row and row.queue == settle.queue and not row.acked_by and (is_live or row.state == state)
    if can then settles[settle.kind](row, settle) end
    if can and next(row.spots) then wake('queue', row.queue) end -- a claim will find it, now or later
    instants[at] = can and (settle.kind == 'Heartbeat' and row.deadline or now) or false
  end
  return instants
end

function operations.sweep_jobs(queue)
  return each(all(queue), function(row)
    return place(row) == 'stale' and bury(row, is_expired(row) and EXPIRED or LAPSED)
  end)
end

function operations.purge_jobs(queue, older_than)
  return each(all(queue), function(row)
    local is_old = older_than <= ZERO or row.died_at and row.died_at < shift(now, older_than, -1)
    return row.state == 'dead' and is_old and remove(row)
  end)
end
