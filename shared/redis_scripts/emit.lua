-- emit: append one step's pieces to their logs, then publish them: what a client saw can always be replayed.
-- A piece is appended only where the log of this very attempt ends. It is refused if another attempt has opened
-- the log since, if the log is gone, or if the log does not hold what comes before (a server that lost its last
-- writes): the log never has a hole. Repeating a call whose reply was lost is harmless.
-- KEYS  1..n logs
-- ARGV  1 key prefix   2 grace (ms): a gateway that has been gone for longer will not come back   3 worker
--       then for each: id, attempt, at (tokens before), count (tokens in it, 1 or more), piece (JSON members)
-- returns {{number of each refused piece ...}, {number of each that nobody watches ...},
--          {number of each whose watchers are all gone, and that nobody wants kept ...}}
local prefix, grace_ms, worker, now = ARGV[1], tonumber(ARGV[2]), ARGV[3], now_ms()
local refused, unwatched, orphans, watched, frames, channels = {}, {}, {}, {}, {}, {}

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
  local a = 3 + (i - 1) * 5
  local id, attempt, at, count, piece = unpack(ARGV, a + 1, a + 5)
  -- The owner counts, too: where a client uses its key again after all was forgotten, attempts begin anew.
  local h = redis.call('HMGET', prefix .. 'req:' .. id, 'gw', 'detach', 'owner')
  if h[3] == worker and appended(KEYS[i], attempt, tonumber(at), tonumber(count), piece) then
    watched[i] = {channels = h[1] or '', detached = h[2]}
    for channel in each_channel(h[1]) do
      if not frames[channel] then
        frames[channel] = {}
        channels[#channels + 1] = channel
      end
      table.insert(frames[channel], '{"id":"' .. id .. '","attempt":' .. attempt .. ',"at":' .. at .. ',' .. piece .. '}')
    end
  else refused[#refused + 1] = i end
end
local gone = {}
for _, channel in ipairs(channels) do
  gone[channel] = is_gone(prefix, channel, table.concat(frames[channel], ','), now, grace_ms)
end
for i, request in pairs(watched) do
  local some, live = false, false
  for channel in each_channel(request.channels) do
    some, live = true, live or not gone[channel]
  end
  if not live then unwatched[#unwatched + 1] = i end
  if some and not live and not request.detached then orphans[#orphans + 1] = i end
end
return {refused, unwatched, orphans}
