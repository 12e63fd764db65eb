-- finish: running -> done, failed, cancelled or expired, by its owner only. Comes after the last emit.
-- Ack and del come first: they are allowed when memory is full.
-- KEYS  1 lane stream   2 request hash   3 log
-- ARGV  1 id   2 entry   3 attempt   4 tokens   5 state   6 outcome (JSON)   7 keep (ms)   8 worker
-- returns 1 ended now (or already, by this very attempt)   0 no longer ours, or the log does not hold all tokens yet:
-- a pipeline goes on after an emit that failed, and an end must not overtake it
local stream, req, log = KEYS[1], KEYS[2], KEYS[3]
local h = redis.call('HMGET', req, 'attempt', 'state', 'gw', 'owner')
if h[1] ~= ARGV[3] or h[4] ~= ARGV[8] then return 0 end
if h[2] ~= 'running' then return h[2] == ARGV[5] and 1 or 0 end
if (position(log)) ~= tonumber(ARGV[4]) then return 0 end
forget_entry(stream, ARGV[2])
redis.call('HDEL', req, 'payload')
redis.call('HSET', req, 'state', ARGV[5], 'outcome', ARGV[6], 'ended', now_ms(), 'tokens', ARGV[4])
redis.call('PEXPIRE', req, ARGV[7])
redis.call('PEXPIRE', log, ARGV[7])
publish_end(h[3], ARGV[1], ARGV[3], ARGV[4], ARGV[6])
return 1
