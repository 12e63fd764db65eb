-- cancel: queued or parked -> ended at once; running -> marked, and its owner told. Safe to repeat.
-- The mark is level-triggered: heartbeat, fetch and claim read it, should the message be lost.
-- With a channel, its gateway only stops watching; the request is cancelled if nobody else watches or wants it kept.
-- KEYS  1 lane stream   2 request hash   3 lane stats
-- ARGV  1 id   2 state   3 outcome (JSON)   4 keep (ms)   5 key prefix   6 control channel prefix   7 message
--       8 channel of the gateway that leaves ('': cancel, whoever watches)
-- returns 'settled' | 'running' | 'ended' | 'unknown' | 'kept'
local stream, req, stats = KEYS[1], KEYS[2], KEYS[3]
local h = redis.call('HMGET', req, 'state', 'entry', 'owner', 'cost', 'gw', 'detach')
if not h[1] then return 'unknown' end
local waits = h[1] == 'queued' or h[1] == 'parked'
if not waits and h[1] ~= 'running' then return 'ended' end
if ARGV[8] ~= '' then
  local others = {}
  for channel in each_channel(h[5]) do
    if channel ~= ARGV[8] then others[#others + 1] = channel end
  end
  if #others > 0 or h[6] then
    redis.call('HDEL', req, 'none')  -- allowed when memory is full, and after it so is the next
    redis.call('HSET', req, 'gw', table.concat(others, ' '))
    return 'kept'
  end
end
if waits then
  settle(ARGV[5], stream, h[2], ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]))
  drained(stream, stats, 1, tonumber(h[4]), now_ms(), 0)
  return 'settled'
end
redis.call('HDEL', req, 'cx')  -- allowed when memory is full, and after it so is the next
redis.call('HSET', req, 'cx', 1)
redis.call('PUBLISH', ARGV[6] .. h[3], ARGV[7])
return 'running'
