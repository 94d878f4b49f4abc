-- Streams. A log is a sorted set of offset .. packed event, `last` the greatest offset given, `head` the greatest that could
-- be read. The first offset that an open transaction took is its floor: readers stay below, or a commit would fill a gap
-- behind them.
local alive = {}
local function is_alive(txid) -- while its process listens: a killed one has no subscriber on its own channel any more
  local store = txid:match('^[^/]*')
  if alive[store] == nil then alive[store] = call('PUBSUB', 'NUMSUB', P .. 'store:' .. store)[2] > 0 end
  return alive[store]
end

local function floor(stream, apart_from)
  local floors, least = call('HGETALL', P .. 'floors:' .. stream), false
  for at = 1, #floors, 2 do
    local txid, offset = floors[at], floors[at + 1]
    if txid ~= apart_from and (not least or offset < least) and is_alive(txid) then least = offset end
  end
  return least
end

local function top(stream, apart_from)
  local least = floor(stream, apart_from)
  return least and '(' .. least or '+'
end

local function head(stream)
  local greatest = call('ZREVRANGEBYLEX', P .. 'log:' .. stream, top(stream), '-', 'LIMIT', 0, 1)[1]
  local before = call('HGET', P .. 'stream:' .. stream, 'head') or ZERO
  local seen = (greatest or ''):sub(1, 20)
  return seen > before and seen or before, before
end

local function raise_head(stream)
  local greatest, before = head(stream)
  if greatest > before then call('HSET', P .. 'stream:' .. stream, 'head', greatest) end
  wake('stream', stream)
end

local function draw(stream)
  local offset = shift(call('HGET', P .. 'stream:' .. stream, 'last') or ZERO, ONE)
  call('HSET', P .. 'stream:' .. stream, 'last', offset)
  return offset
end

local function land(stream, offset, event)
  call('SADD', P .. 'streams', stream)
  call('ZADD', P .. 'log:' .. stream, 0, offset .. cmsgpack.pack(event))
end

function operations.append_events(events)
  local offsets = {}
  for at, event in ipairs(events) do
    local stream, key, payload, headers = unpack(event)
    offsets[at] = draw(stream)
    land(stream, offsets[at], { key, payload, headers, now })
  end
  for _, event in ipairs(events) do
    if not woken['stream:' .. event[1]] then raise_head(event[1]) end
  end
  return offsets
end

function operations.read_events(stream, after, limit, txid)
  local found = {}
  local log = P .. 'log:' .. stream
  for _, member in ipairs(call('ZRANGEBYLEX', log, '(' .. after .. '\255', top(stream, txid), 'LIMIT', 0, limit)) do
    found[#found + 1] = { member:sub(1, 20), unpack(cmsgpack.unpack(member:sub(21))) }
  end
  return { found, floor(stream, txid) }
end

function operations.read_head(stream) return (head(stream)) end

function operations.trim_events(stream, horizon)
  local least = floor(stream)
  local most = least and least <= horizon and '(' .. least or '[' .. horizon .. '\255'
  return call('ZREMRANGEBYLEX', P .. 'log:' .. stream, '-', most)
end

function operations.read_offsets(stream, consumer)
  if not consumer then return call('HGETALL', P .. 'positions:' .. stream) end
  local position = call('HGET', P .. 'positions:' .. stream, consumer)
  return position and { consumer, position } or {}
end

local function position(stream, consumer) return call('HGET', P .. 'positions:' .. stream, consumer) or ZERO end

local function save(stream, consumer, offset)
  call('SADD', P .. 'streams', stream)
  call('HSET', P .. 'positions:' .. stream, consumer, offset)
end

function operations.move_offset(stream, consumer, offset, backwards)
  if call('HEXISTS', P .. 'holds', stream .. '\0' .. consumer) == 1 then return 'held' end
  if not backwards and offset <= position(stream, consumer) then return 0 end
  save(stream, consumer, offset)
  return 1
end
