-- Transactions. What one writes is kept by its process until the commit. What others must see of it before are its marks:
-- jobs that it acked, floors in streams, positions that it holds. The next write of anybody frees what a dead one had.
local function mark(txid, kind, what)
  call('SADD', P .. 'open', txid)
  call('SADD', P .. 'marks:' .. txid, kind .. ':' .. what)
end

local undo = {}
function undo.job(id)
  local row = read(id)
  if row then
    put(row, { held = false })
    wake('queue', row.queue)
  end
end
function undo.floor(stream, txid)
  call('HDEL', P .. 'floors:' .. stream, txid)
  raise_head(stream)
  local kept = call('EXISTS', P .. 'log:' .. stream, P .. 'floors:' .. stream)
  if kept == 0 and not call('HGET', P .. 'stream:' .. stream, 'head') then call('DEL', P .. 'stream:' .. stream) end
end
function undo.hold(position) call('HDEL', P .. 'holds', position) end

local function free_marks(txid)
  for _, found in ipairs(call('SMEMBERS', P .. 'marks:' .. txid)) do
    local colon = found:find(':', 1, true)
    undo[found:sub(1, colon - 1)](found:sub(colon + 1), txid)
  end
  call('HDEL', P .. 'wants', txid)
  call('DEL', P .. 'marks:' .. txid)
  call('SREM', P .. 'open', txid)
end

local function reap()
  for _, txid in ipairs(call('SMEMBERS', P .. 'open')) do
    if not is_alive(txid) then free_marks(txid) end
  end
end

function operations.draw_jobs(jobs)
  local rows, last = {}, draw_ids(#jobs)
  for at, job in ipairs(jobs) do rows[at] = shown(make(job, last + at, false)) end
  return rows
end

function operations.hold_jobs(txid, acks)
  local instants = {}
  call('SADD', P .. 'open', txid)
  for at, ack in ipairs(acks) do
    local row = live(unpack(ack))
    instants[at] = row and now or false
    if row then
      put(row, { held = txid })
      mark(txid, 'job', row.id)
    end
  end
  return instants
end

function operations.draw_events(txid, streams)
  local offsets = {}
  for at, stream in ipairs(streams) do
    offsets[at] = draw(stream)
    call('HSETNX', P .. 'floors:' .. stream, txid, offsets[at])
    mark(txid, 'floor', stream)
  end
  return { now, offsets }
end

function operations.hold_position(txid, stream, consumer)
  local wanted = stream .. '\0' .. consumer
  local owner = call('HGET', P .. 'holds', wanted)
  if not owner or owner == txid then
    call('HSET', P .. 'holds', wanted, txid)
    call('HDEL', P .. 'wants', txid)
    mark(txid, 'hold', wanted)
    return position(stream, consumer)
  end
  local waits_for = owner
  while waits_for do -- who waits for whom, up to one who waits for nobody, or for us
    local theirs = call('HGET', P .. 'wants', waits_for)
    waits_for = theirs and call('HGET', P .. 'holds', theirs)
    if waits_for == txid then return 'circle' end
  end
  call('SADD', P .. 'open', txid)
  call('HSET', P .. 'wants', txid, wanted)
  return 'held'
end

function operations.commit(txid, is_marked, acked, rows, events, saves, wakes)
  if is_marked and call('SISMEMBER', P .. 'open', txid) == 0 then return 0 end
  for _, id in ipairs(acked) do remove(read(id)) end
  for _, values in ipairs(rows) do
    local row = {}
    for at = 1, SHOWN do row[FIELDS[at]] = values[at] end
    add(row)
  end
  for _, event in ipairs(events) do
    local stream, offset, key, payload, headers, created_at = unpack(event)
    land(stream, offset, { key, payload, headers, created_at })
  end
  for _, each_save in ipairs(saves) do save(unpack(each_save)) end
  operations.notify(wakes)
  free_marks(txid)
  return 1
end

function operations.rollback(txid) return free_marks(txid) or 1 end
