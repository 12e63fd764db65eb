-- claim: running for a worker that went silent -> running for this one (or given up, as a dead letter).
-- KEYS  1..n lane streams   n+1..2n lane stats   2n+1 dead-letter stream
-- ARGV  1 worker   2 key prefix   3 total   4 keep (ms)   5 expired outcome   6 cancelled outcome   7 poison outcome
--       8 grace (ms) of gateways that are gone   9 lease (ms)   10 max deaths   11 dead letters kept
--       12 deaths after which a request must run alone: one such a call at most, and one worker at a time
-- returns {opened request ...}
local worker, prefix, left = ARGV[1], ARGV[2], tonumber(ARGV[3])
local ends = {keep_ms = tonumber(ARGV[4]), expired = ARGV[5], cancelled = ARGV[6], grace_ms = tonumber(ARGV[8]),
  alone_after = tonumber(ARGV[12])}
local lease_ms, max_deaths, alone_after = ARGV[9], tonumber(ARGV[10]), tonumber(ARGV[12])
local has_suspect = false
-- What a dead letter keeps of the request: all that it takes to go on with it when its hash is gone.
local LETTER = {'lane', 'owner', 'payload', 'cost', 'tenant', 'print', 'meta'}
local lanes, opened, dlq = (#KEYS - 1) / 2, {}, KEYS[#KEYS]

local function give_up(stream, req, entry, id, deaths)
  local letter = {'id', id, 'cause', 'worker_lost', 'deaths', deaths}
  for i, value in ipairs(redis.call('HMGET', req, unpack(LETTER))) do
    if value then
      letter[#letter + 1] = LETTER[i]
      letter[#letter + 1] = value
    end
  end
  redis.call('XADD', dlq, 'MAXLEN', '~', ARGV[11], '*', unpack(letter))
  redis.call('HSET', req, 'deaths', deaths)
  settle(prefix, stream, entry, id, 'failed', ARGV[7], ends.keep_ms)
end

local function take_over(lane, stream, entry, id, cost)
  local req = prefix .. 'req:' .. id
  local state, owner, before, cx, held_back = unpack(redis.call('HMGET', req, 'state', 'owner', 'deaths', 'cx',
    'held_back'))
  local deaths = tonumber(before) or 0
  if state == 'running' and owner ~= worker and not held_back then deaths = deaths + 1 end  -- what was ours has killed nobody
  if deaths >= max_deaths then return give_up(stream, req, entry, id, deaths) end
  if deaths >= alone_after and not cx then
    if has_suspect or not hold_alone(prefix, worker, lease_ms) then  -- it must not die with what this worker holds: another finds it, as it was found here
      local holder = (owner and owner ~= '') and owner or PARKED
      redis.call('XCLAIM', stream, GROUP, holder, 0, entry, 'IDLE', lease_ms, 'JUSTID')
      return
    end
    has_suspect = true
  end
  if state == 'parked' then drained(stream, KEYS[lanes + lane], 1, tonumber(cost), now_ms(), 1) end
  if deaths > 0 then redis.call('HSET', req, 'deaths', deaths) end
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
    local found = redis.call('XAUTOCLAIM', stream, GROUP, worker, lease_ms, cursor, 'COUNT', left)
    cursor = found[1]
    for _, entry in ipairs(found[2]) do take_over(lane, stream, entry[1], entry[2][2], entry[2][4]) end
    if cursor == '0-0' then break end
  end
  -- A consumer record that holds nothing and has long been silent is a dead worker's.
  for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', stream, GROUP)) do
    local name, pending, idle = consumer[2], consumer[4], consumer[6]
    if name ~= worker and name ~= PARKED and pending == 0 and idle > 20 * tonumber(lease_ms) then
      redis.call('XGROUP', 'DELCONSUMER', stream, GROUP, name)
    end
  end
end
return opened
