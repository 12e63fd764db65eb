-- cancel: queued or parked -> ended at once; running -> marked, and its owner told. Safe to repeat.
-- The mark is level-triggered: heartbeat, fetch and claim read it, should the message be lost.
-- KEYS  1 lane stream   2 request hash   3 lane stats
-- ARGV  1 id   2 state   3 outcome (JSON)   4 keep (ms)   5 key prefix   6 control channel prefix   7 message
-- returns 'settled' | 'running' | 'ended' | 'unknown'
local stream, req, stats = KEYS[1], KEYS[2], KEYS[3]
local h = redis.call('HMGET', req, 'state', 'entry', 'owner', 'cost')
if not h[1] then return 'unknown' end
if h[1] == 'queued' or h[1] == 'parked' then
  settle(ARGV[5], stream, h[2], ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]))
  drained(stats, 1, tonumber(h[4]), now_ms())
  return 'settled'
end
if h[1] ~= 'running' then return 'ended' end
redis.call('HDEL', req, 'cx')  -- allowed when memory is full, and after it so is the next
redis.call('HSET', req, 'cx', 1)
redis.call('PUBLISH', ARGV[6] .. h[3], ARGV[7])
return 'running'
