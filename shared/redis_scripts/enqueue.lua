-- enqueue: absent -> queued. Bounds are checked and the entry is added in one step, so they are exact.
-- With `again`, a request that ended otherwise than done is queued once more: it goes on from what its log holds.
-- KEYS  1 lane stream   2 request hash   3 lane stats
-- ARGV  1 id   2 max_queued   3 max_queued_tokens   4 cost (tokens)   5 queue timeout (ms)   6 deadline (ms)
--       7 keep (ms, beyond the deadline)   8 bell channel   9 lane   10 again (1 or 0)
--       11.. field, value pairs of the request hash, `print` among them: what tells one request's content from another's
-- returns {'OK', requests ahead, drain rate (mHz), seen over (ms)} | {'DUP', state, print} | {'CANCELLING'}: ask again |
--         {'FULL' or 'LATE', queued, waiting tokens, drain rate (mHz)}; LATE: it would not be started in time
local stream, req, stats = KEYS[1], KEYS[2], KEYS[3]
local cost, now = tonumber(ARGV[4]), now_ms()
local EVIDENCE_MS = 1000  -- a pace seen for less than this refuses nobody

-- The same id again is the client library repeating a call whose reply was lost, or a client its request.
local seen = redis.call('HMGET', req, 'state', 'print', 'cx')
if seen[1] then
  local same = true
  for i = 11, #ARGV, 2 do
    if ARGV[i] == 'print' then same = ARGV[i + 1] == (seen[2] or '') end
  end
  if ARGV[10] == '1' and same and seen[1] == 'running' and seen[3] then return {'CANCELLING'} end
  if ARGV[10] ~= '1' or not RETRIED[seen[1]] or not same then return {'DUP', seen[1], seen[2] or ''} end
end

local queued = depth_before(stream, stats)
local waiting = tonumber(redis.call('HGET', stats, 'tokens')) or 0
local rate, seen_ms = drain_rate(stats, now)
local told = {queued, waiting, mhz(rate)}
if queued >= tonumber(ARGV[2]) or (queued > 0 and waiting + cost > tonumber(ARGV[3])) then
  return {'FULL', unpack(told)}
end
if queued > 0 and rate > 0 and seen_ms >= EVIDENCE_MS and queued * 1000 > rate * tonumber(ARGV[5]) then
  return {'LATE', unpack(told)}
end

local times = {expires = tonumber(ARGV[5]), deadline = tonumber(ARGV[6]), keep = tonumber(ARGV[7])}
put_into_lane(stream, queued, req, stats, ARGV[1], ARGV[9], cost, times, ARGV[8], now, {unpack(ARGV, 11)})
return {'OK', queued, told[3], math.floor(seen_ms)}
