-- revive: failed, with a dead letter -> queued, with its id, detached, no death counted; it goes on from what its log
-- holds, or anew if that is over. The letter is the fence: it goes in the same step.
-- The lane's bounds are not asked: an operator's word is not an arrival.
-- KEYS  1 dead-letter stream   2 lane stream   3 request hash   4 lane stats   5 log
-- ARGV  1 entry of the letter   2 id   3 lane   4 queue timeout (ms)   5 deadline (ms)   6 keep (ms, beyond the deadline)
--       7 bell channel
-- returns {'OK'} | {'GONE', state ('': not known)}: no such letter (any more) | {'MOOT', state}: it was asked for again
--         and runs, waits or is done, so only the letter goes | {'EMPTY'}: the letter has no payload, nothing changes
local dlq, stream, req, stats, log = unpack(KEYS)
local id, now = ARGV[2], now_ms()

local state = redis.call('HGET', req, 'state')
local found = redis.call('XRANGE', dlq, ARGV[1], ARGV[1])
if not found[1] then return {'GONE', state or ''} end
local letter = {}
for i = 1, #found[1][2], 2 do letter[found[1][2][i]] = found[1][2][i + 1] end
local verdict = {'OK'}
if state and not RETRIED[state] then
  verdict = {'MOOT', state}
elseif (letter.payload or '') == '' then
  return {'EMPTY'}
else
  local queued = depth_before(stream, stats)
  local fields = {'deaths', 0, 'detach', 1}
  for _, name in ipairs({'payload', 'tenant', 'print', 'meta'}) do
    if letter[name] then
      fields[#fields + 1] = name
      fields[#fields + 1] = letter[name]
    end
  end
  local times = {expires = tonumber(ARGV[4]), deadline = tonumber(ARGV[5]), keep = tonumber(ARGV[6])}
  if not state then redis.call('DEL', log) end  -- attempts count from 0 again, and an older log would refuse them
  put_into_lane(stream, queued, req, stats, id, ARGV[3], tonumber(letter.cost) or 0, times, ARGV[7], now, fields)
end
redis.call('XDEL', dlq, ARGV[1])
return verdict
