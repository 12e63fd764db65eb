-- heartbeat: say that a worker lives, and renew its lease on each request that is still its own.
-- KEYS  1 worker hash   2 workers zset   3.. lane streams
-- ARGV  1 worker   2 time to live (ms)   3 key prefix   4 1 if it holds a suspect   5 number of worker fields
--       then these field, value pairs, then for each held request: lane number, entry, id, attempt
-- returns {now, {number of each held request that was lost ...}, {number of each that shall be cancelled ...}}
local worker, ttl, prefix, fields = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[5])
local now, lost, cancelled = now_ms(), {}, {}
-- This write comes first: it is allowed when memory is full, and after it so are the others.
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - ttl)
redis.call('HSET', KEYS[1], 'seen', now, unpack(ARGV, 6, 5 + 2 * fields))
redis.call('PEXPIRE', KEYS[1], ttl)
redis.call('ZADD', KEYS[2], now, worker)
redis.call('PEXPIRE', KEYS[2], ttl)
local since = prefix .. 'alive_since'
if redis.call('ZCARD', KEYS[2]) == 1 then redis.call('SET', since, now, 'NX', 'PX', ttl) end
redis.call('PEXPIRE', since, ttl)
local first = 6 + 2 * fields
if ARGV[4] == '1' then hold_alone(prefix, worker, ttl) end
for i = first, #ARGV, 4 do
  local number = (i - first) / 4 + 1
  local h = redis.call('HMGET', prefix .. 'req:' .. ARGV[i + 2], 'attempt', 'state', 'cx', 'owner')
  if h[1] ~= ARGV[i + 3] or h[2] ~= 'running' or h[4] ~= worker then
    lost[#lost + 1] = number
  else
    redis.call('XCLAIM', KEYS[2 + tonumber(ARGV[i])], GROUP, worker, 0, ARGV[i + 1], 'JUSTID')
    if h[3] then cancelled[#cancelled + 1] = number end
  end
end
return {now, lost, cancelled}
