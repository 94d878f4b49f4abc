-- Streams. A log is a sorted set of offset .. event. The first offset that an open transaction took is its floor: readers stay
-- below, or a commit would fill a gap behind them. Until then its events are in a log of its own.
local function log(stream) return P .. 'log:' .. tx .. ':' .. stream end
local function landed(stream) return P .. 'log::' .. stream end

local function floor(stream) -- of the others; without any, a text that sorts after every offset
  local least = '~'
  for txid, offset in pairs(map('floors:' .. stream)) do
    if txid ~= tx and offset < least and is_alive(txid) then least = offset end
  end
  return least
end

function operations.append_events(events)
  local offsets = {}
  for at, event in ipairs(events) do
    local stream, offset = event.stream, draw('stream:' .. event.stream)
    event.offset, event.created_at, offsets[at] = offset, now, offset
    call('ZADD', log(stream), 0, offset .. cjson.encode(event))
    if tx == '' then
      call('SADD', P .. 'streams', stream)
      wake('stream', stream)
    else
      call('HSETNX', P .. 'floors:' .. stream, tx, offset)
      mark('drafted', stream)
    end
  end
  return offsets
end

function operations.read_events(stream, after, limit)
  local found, events = {}, {}
  for _, log in ipairs({ landed(stream), tx ~= '' and log(stream) or nil }) do
    local range = { '(' .. after .. '\255', '(' .. floor(stream), 'LIMIT', 0, count(limit) }
    for _, member in ipairs(call('ZRANGEBYLEX', log, unpack(range))) do found[#found + 1] = member end
  end
  table.sort(found)
  for at = 1, math.min(#found, count(limit)) do events[at] = cjson.decode(found[at]:sub(21)) end
  return events
end

function operations.read_head(stream)
  local last = call('ZREVRANGEBYLEX', landed(stream), '(' .. floor(stream), '-', 'LIMIT', 0, 1)[1] or ''
  local head, trimmed = last:sub(1, 20), call('HGET', P .. 'trimmed', stream) or ZERO
  return head > trimmed and head or trimmed
end

function operations.trim_events(stream, horizon)
  local log, least = landed(stream), floor(stream)
  call('HSET', P .. 'trimmed', stream, operations.read_head(stream))
  local gone = call('ZREMRANGEBYLEX', log, '-', least <= horizon and '(' .. least or '[' .. horizon .. '\255')
  if call('EXISTS', log, P .. 'positions:' .. stream) == 0 then call('SREM', P .. 'streams', stream) end
  return gone
end

local function position(stream, name) return call('HGET', P .. 'positions:' .. stream, name) or ZERO end

local function save(stream, consumer, offset)
  call('SADD', P .. 'streams', stream)
  call('HSET', P .. 'positions:' .. stream, consumer, offset)
end

function operations.read_offsets(stream, consumer)
  local positions = map('positions:' .. stream)
  return consumer and { [consumer] = positions[consumer] } or positions
end

function operations.move_offset(stream, consumer, offset, backwards)
  if call('HEXISTS', P .. 'holds', stream .. '\0' .. consumer) == 1 then return 'held' end
  local moves = backwards or offset > position(stream, consumer)
  if moves then save(stream, consumer, offset) end
  return moves
end
