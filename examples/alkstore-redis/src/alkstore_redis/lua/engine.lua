function operations.notify(wakes)
  for _, each_wake in ipairs(wakes) do
    local channel, payload = unpack(each_wake)
    wake('channel', channel)
    call('PUBLISH', P .. 'notify:' .. channel, payload) -- for listeners that are not alkstore
  end
  return 1
end

function operations.list_names()
  local streams = {}
  for _, stream in ipairs(call('SMEMBERS', P .. 'streams')) do
    if call('EXISTS', P .. 'log:' .. stream, P .. 'positions:' .. stream) > 0 then streams[#streams + 1] = stream end
  end
  return { call('SMEMBERS', P .. 'queues'), streams }
end

function operations.hello() return 1 end

local is_read = ({ find = 1, count = 1, read = 1, list = 1 })[ARGV[1]:match('^%l+')]
if not is_read then reap() end
local result = operations[ARGV[1]](unpack(cmsgpack.unpack(ARGV[2])))
for topic in pairs(woken) do call('PUBLISH', P .. 'wake', topic) end
return cmsgpack.pack({ now, result or false })
