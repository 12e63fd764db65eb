-- claim: running for a worker that went silent -> running for this one (or given up, as a dead letter).
-- KEYS  1..n lane streams   n+1..2n lane stats   2n+1 dead-letter stream
-- ARGV  1 worker   2 key prefix   3 total   4 keep (ms)   5 expired outcome   6 cancelled outcome   7 poison outcome
--       8 lease (ms)   9 max deaths   10 dead letters kept
-- returns {opened request ...}
local worker, prefix, left = ARGV[1], ARGV[2], tonumber(ARGV[3])
local ends = {keep_ms = tonumber(ARGV[4]), expired = ARGV[5], cancelled = ARGV[6]}
local lanes, opened, dlq = (#KEYS - 1) / 2, {}, KEYS[#KEYS]

local function take_over(lane, stream, entry, id, cost)
  local req = prefix .. 'req:' .. id
  local state, owner = unpack(redis.call('HMGET', req, 'state', 'owner'))
  if state == 'parked' then drained(KEYS[lanes + lane], 1, tonumber(cost), now_ms()) end
  if state == 'running' and owner ~= worker then  -- what was ours has killed nobody
    local deaths = redis.call('HINCRBY', req, 'deaths', 1)
    if deaths >= tonumber(ARGV[9]) then
      redis.call('XADD', dlq, 'MAXLEN', '~', ARGV[10], '*', 'id', id, 'deaths', deaths,
        'owner', owner or '')
      settle(prefix, stream, entry, id, 'failed', ARGV[7], ends.keep_ms)
      return
    end
  end
  local request = open(prefix, stream, lane, entry, id, worker, ends)
  if request then
    opened[#opened + 1] = request
    left = left - 1
  end
end

for lane = 1, lanes do
  local stream, cursor = KEYS[lane], '0-0'
  ensure_group(stream)
  for _ = 1, 1000 do  -- XAUTOCLAIM looks at only 10 * COUNT pending entries a call
    if left <= 0 then break end
    local found = redis.call('XAUTOCLAIM', stream, GROUP, worker, ARGV[8], cursor, 'COUNT', left)
    cursor = found[1]
    for _, entry in ipairs(found[2]) do take_over(lane, stream, entry[1], entry[2][2], entry[2][4]) end
    if cursor == '0-0' then break end
  end
  -- A consumer record that holds nothing and has long been silent is a dead worker's.
  for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', stream, GROUP)) do
    local name, pending, idle = consumer[2], consumer[4], consumer[6]
    if name ~= worker and name ~= PARKED and pending == 0 and idle > 20 * tonumber(ARGV[8]) then
      redis.call('XGROUP', 'DELCONSUMER', stream, GROUP, name)
    end
  end
end
return opened
