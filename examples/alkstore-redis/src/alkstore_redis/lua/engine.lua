-- Every operation ends here. What an operation gives is sent with the instant at which it was done.
function operations.list_names() return { call('HKEYS', P .. 'queues'), call('SMEMBERS', P .. 'streams') } end

local name = ARGV[1]
local is_look = tx == '' and ({ find = 1, count = 1, read = 1, list = 1 })[name:match('^%l+')]
if not is_look then reap() end -- a look writes nothing, whoever died
if tx ~= '' and name ~= 'begin' and name ~= 'rollback' and call('SISMEMBER', P .. 'open', tx) == 0 then
  return redis.error_reply('ERR transaction was given up: its listening connection was lost; begin it again')
end
local result = operations[name](unpack(cjson.decode(ARGV[2])))
for topic in pairs(woken) do call('PUBLISH', P .. 'wake', topic) end
return cjson.encode({ now, result or false })
