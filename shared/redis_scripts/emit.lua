-- emit: append one step's pieces to their logs, then publish them: what a client saw can always be replayed.
-- A piece is appended only where the log of this very attempt ends. It is refused if another attempt has opened
-- the log since, if the log is gone, or if the log does not hold what comes before (a server that lost its last
-- writes): the log never has a hole. Repeating a call whose reply was lost is harmless.
-- KEYS  1..n logs
-- ARGV  for each: id, attempt, at (tokens before), count (tokens in it, 1 or more), piece (JSON members),
--       gateway channel ('' = nobody watches)
-- returns {number of each refused piece ...}
local refused, frames, channels = {}, {}, {}

local function appended(log, attempt, at, count, piece)
  local held, owner = position(log)
  if owner ~= attempt then return false end
  local entry = attempt .. '-' .. string.format('%d', at + count)
  if held == at then
    redis.call('XADD', log, entry, 'p', piece)
    return true
  end
  local same = redis.call('XRANGE', log, entry, entry)  -- repeated: this very piece is in it
  return same[1] ~= nil and same[1][2][1] == 'p'
end

-- A write that is allowed when memory is full; after it, so are the others: what runs must be able to end.
redis.call('XDEL', KEYS[1], '0-0')
for i = 1, #KEYS do
  local a = (i - 1) * 6
  local id, attempt, at, count, piece, channel = unpack(ARGV, a + 1, a + 6)
  if not appended(KEYS[i], attempt, tonumber(at), tonumber(count), piece) then
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
