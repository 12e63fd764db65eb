-- enqueue: absent -> queued. Bounds are checked and the entry is added in one step, so they are exact.
-- KEYS  1 lane stream   2 request hash   3 lane stats
-- ARGV  1 id   2 max_queued   3 max_queued_tokens   4 cost (tokens)   5 queue timeout (ms)   6 deadline (ms)
--       7 keep (ms, beyond the deadline)   8 bell channel   9 lane   10.. field, value pairs of the request hash
-- returns {'OK', requests ahead, now} | {'DUP', state} | {'FULL', queued, waiting tokens, drain rate (mHz)}
local stream, req, stats = KEYS[1], KEYS[2], KEYS[3]
local cost, now = tonumber(ARGV[4]), now_ms()

-- The same id again is the client library repeating a call whose reply was lost.
local state = redis.call('HGET', req, 'state')
if state then return {'DUP', state} end

ensure_group(stream)
local queued = depth(stream)
if queued == 0 then redis.call('HSET', stats, 'tokens', 0) end  -- heals what a lost request hash may have left
local waiting = tonumber(redis.call('HGET', stats, 'tokens')) or 0
if queued >= tonumber(ARGV[2]) or (queued > 0 and waiting + cost > tonumber(ARGV[3])) then
  return {'FULL', queued, waiting, math.floor(drain_rate(stats, now) * 1000)}
end

local entry = redis.call('XADD', stream, '*', 'id', ARGV[1], 'cost', cost)
redis.call('HSET', req, 'state', 'queued', 'lane', ARGV[9], 'entry', entry, 'attempt', 0, 'cost', cost, 'queued', now,
  'expires', now + ARGV[5], 'deadline', now + ARGV[6], unpack(ARGV, 10))
redis.call('PEXPIREAT', req, now + ARGV[6] + ARGV[7])
redis.call('HINCRBY', stats, 'tokens', cost)
redis.call('PUBLISH', ARGV[8], ARGV[9])
return {'OK', queued, now}
