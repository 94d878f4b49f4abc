-- Wakes. Every store hears on one channel of what was touched; who is no alkstore, the payload on a channel of its own.
local function tell(notified)
  wake('channel', notified.channel)
  call('PUBLISH', P .. 'notify:' .. notified.channel, notified.payload or '')
end

function operations.notify(wakes)
  for _, notified in ipairs(wakes) do
    if tx == '' then tell(notified) else mark('told', draw('told') .. cjson.encode(notified)) end
  end
end
