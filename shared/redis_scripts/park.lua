-- park: running -> parked, by its owner, after its last emit. The entry keeps its id, and so its place by age;
-- any worker takes it up again from the log.
-- KEYS  1 lane stream   2 request hash   3 lane stats
-- ARGV  1 entry   2 attempt   3 bell channel   4 lane   5 worker
-- returns 1 parked   0 no longer ours
local stream, req, stats = KEYS[1], KEYS[2], KEYS[3]
local h = redis.call('HMGET', req, 'attempt', 'state', 'cost', 'owner')
if h[1] ~= ARGV[2] or h[2] ~= 'running' or h[4] ~= ARGV[5] then return 0 end
redis.call('XCLAIM', stream, GROUP, PARKED, 0, ARGV[1], 'JUSTID')
redis.call('HSET', req, 'state', 'parked', 'owner', '')
redis.call('HINCRBY', stats, 'tokens', h[3])
redis.call('HINCRBY', stats, 'left', -1)  -- it came back, before all that wait
waits(stats, now_ms())
redis.call('PUBLISH', ARGV[3], ARGV[4])
return 1
