-- inspect: all that can be said of one request; changes nothing.
-- KEYS  1 lane stream   2 request hash   3 lane stats   4 log
-- ARGV  1 entries to count at most: each takes a microsecond in which nobody else is served. What is further back is
--         reckoned from how many were ahead when it was queued and have left since. That is exact, but for those that
--         were cancelled behind it.
-- returns {now, requests ahead of it that wait too, requests that wait in the lane, drain rate (mHz),
--          tokens in the log, {field, value ...}}; the last is empty if nothing is known of it
local stream, req, stats, log = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local now, hash = now_ms(), {}
local names = {'state', 'lane', 'entry', 'attempt', 'deaths', 'owner', 'gw', 'detach', 'cx', 'queued', 'expires',
  'deadline', 'started', 'waited', 'ended', 'outcome', 'tokens', 'tenant', 'meta'}
for i, value in ipairs(redis.call('HMGET', req, unpack(names))) do
  if value then
    hash[#hash + 1] = names[i]
    hash[#hash + 1] = value
  end
end
if redis.call('EXISTS', stream) == 0 then return {now, 0, 0, 0, (position(log)), hash} end
local state, entry, turn = unpack(redis.call('HMGET', req, 'state', 'entry', 'turn'))
local waiting, ahead = depth(stream), 0
if state == 'parked' then
  ahead = math.max(0, #redis.call('XPENDING', stream, GROUP, '-', entry, ARGV[1], PARKED) - 1)
elseif state == 'queued' then
  for _, consumer in ipairs(redis.call('XPENDING', stream, GROUP)[4] or {}) do
    if consumer[1] == PARKED then ahead = tonumber(consumer[2]) end
  end
  local before = redis.call('XRANGE', stream, '(' .. last_delivered(stream), entry, 'COUNT', ARGV[1])
  if #before > 0 and before[#before][1] ~= entry then
    local reckoned = (tonumber(turn) or 0) - (tonumber(redis.call('HGET', stats, 'left')) or 0)
    ahead = math.max(ahead + #before, math.min(reckoned, waiting - 1))
  else ahead = ahead + math.max(0, #before - 1) end
end
return {now, ahead, waiting, mhz((drain_rate(stats, now))), (position(log)), hash}
