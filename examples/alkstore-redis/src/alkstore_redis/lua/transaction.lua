-- Transactions. A transaction is a name that its operations carry. What it writes is kept apart (jobs with `made_by`, logs of its
-- own, saves), and what others must see of it before its end stands in its way: `acked_by`, floors, held positions.
local function hold(place) -- gives why not, if not
  local owner = call('HGET', P .. 'holds', place)
  if not owner or owner == tx then
    call('HSET', P .. 'holds', place, tx)
    call('HDEL', P .. 'wants', tx)
    return mark('held', place)
  end
  while owner do -- who waits for whom, up to one who waits for nobody, or for us
    local wanted = call('HGET', P .. 'wants', owner)
    owner = wanted and call('HGET', P .. 'holds', wanted)
    if owner == tx then return 'circle' end
  end
  call('HSET', P .. 'wants', tx, place) -- not before: in a circle of others the next one would look for its end for ever
  return 'held'
end

function operations.read_offset(stream, consumer, holds)
  local place = stream .. '\0' .. consumer
  return holds and hold(place) or call('HGET', P .. 'saves:' .. tx, place) or position(stream, consumer)
end

function operations.save_offset(stream, consumer, offset, expected)
  local found = operations.read_offset(stream, consumer, true)
  local saved = found == expected or not expected and offset > found
  if found == 'held' or found == 'circle' then return found end
  if saved then call('HSET', P .. 'saves:' .. tx, stream .. '\0' .. consumer, offset) end
  return { found = found, saved = saved }
end

local ends = {} -- of what it marked
function ends.told(text, lands) if lands then tell(cjson.decode(text:sub(21))) end end
function ends.made(id, lands) if lands then land(read(id)) else remove(read(id)) end end
function ends.acked(id, lands)
  if lands then remove(read(id)) else wake('queue', put(read(id), { acked_by = false }).queue) end
end
function ends.drafted(stream, lands)
  local events = lands and call('ZRANGE', log(stream), 0, -1) or {}
  for _, member in ipairs(events) do call('ZADD', landed(stream), 0, member) end
  if lands then call('SADD', P .. 'streams', stream) end
  call('DEL', log(stream))
  call('HDEL', P .. 'floors:' .. stream, tx)
  wake('stream', stream)
end
function ends.held(place, lands)
  local saved, stream, consumer = call('HGET', P .. 'saves:' .. tx, place), place:match('^(.-)%z(.*)$')
  if lands and saved then save(stream, consumer, saved) end
  call('HDEL', P .. 'holds', place)
end

local function finish(txid, lands)
  local own, marks = tx, call('SMEMBERS', P .. 'marks:' .. txid)
  tx = txid
  table.sort(marks) -- what was told is told in its order
  for _, found in ipairs(marks) do
    local kind, name = found:match('^(%l+):(.*)$')
    ends[kind](name, lands)
  end
  call('DEL', P .. 'marks:' .. tx, P .. 'saves:' .. tx)
  call('HDEL', P .. 'wants', tx)
  call('SREM', P .. 'open', tx)
  tx = own
end

function operations.begin() return call('SADD', P .. 'open', tx) end
function operations.rollback() finish(tx, false) end
function operations.commit() finish(tx, true) end

local function reap() -- what dead processes left
  for _, txid in ipairs(call('SMEMBERS', P .. 'open')) do
    if not is_alive(txid) then finish(txid, false) end
  end
end
