-- emit: append one step's pieces to their logs, then publish them: what a client saw can always be replayed.
-- A piece of an older attempt is refused by the log itself (its id is smaller), one of an ended and forgotten
-- request because its log is gone. Repeating a call whose reply was lost is harmless.
-- KEYS  1..n logs
-- ARGV  for each: id, attempt, at (tokens before), count (tokens in it, 1 or more), piece (JSON members),
--       gateway channel ('' = nobody watches)
-- returns {number of each refused piece ...}
local refused, frames, channels = {}, {}, {}

-- true, false (refused), or nil and an error that has nothing to do with fencing
local function append(log, entry, piece)
  local reply = redis.pcall('XADD', log, 'NOMKSTREAM', entry, 'p', piece)
  if type(reply) == 'string' then return true end
  if type(reply) == 'table' and not string.find(tostring(reply.err), 'equal or smaller', 1, true) then return nil, tostring(reply.err) end
  -- Ours still, and this very piece is in it: the call is repeated.
  local last = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)
  if not last[1] or string.match(last[1][1], '^%d+') ~= string.match(entry, '^%d+') then return false end
  local same = redis.call('XRANGE', log, entry, entry)
  return same[1] ~= nil and same[1][2][1] == 'p'
end

-- A write that is allowed when memory is full; after it, so are the others: what runs must be able to end.
redis.call('XDEL', KEYS[1], '0-0')
for i = 1, #KEYS do
  local a = (i - 1) * 6
  local id, attempt, at, count, piece, channel = unpack(ARGV, a + 1, a + 6)
  local appended, err = append(KEYS[i], attempt .. '-' .. string.format('%d', at + count), piece)
  if err then return redis.error_reply(err) end
  if not appended then
    refused[#refused + 1] = i
  elseif channel ~= '' then
    if not frames[channel] then
      frames[channel] = {}
      channels[#channels + 1] = channel
    end
    table.insert(frames[channel], '{"id":"' .. id .. '","attempt":' .. attempt .. ',"at":' .. at .. ',' .. piece .. '}')
  end
end
for _, channel in ipairs(channels) do
  redis.call('PUBLISH', channel, '{"frames":[' .. table.concat(frames[channel], ',') .. ']}')
end
return refused
