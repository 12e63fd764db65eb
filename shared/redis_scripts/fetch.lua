-- fetch: queued or parked -> running, for one worker. First each lane's quota, then what is left over in
-- lane order, never more than `total` and never more than a lane's cap. Parked entries go first: they are older.
-- Entries that are cancelled or too late are settled here and take nobody's place.
-- KEYS  1..n lane streams   n+1..2n lane stats
-- ARGV  1 worker   2 key prefix   3 total   4 keep (ms)   5 expired outcome   6 cancelled outcome
--       7 grace (ms) of gateways that are gone   8 deaths after which a request must run alone   9.. quota, cap of each lane
-- returns {{opened request ...}, {requests still waiting in each lane ...}, {age of the oldest of them (ms) ...},
--          1 if dead entries used up the call's budget and another call is worth while}
local lanes, worker, prefix, left = #KEYS / 2, ARGV[1], ARGV[2], tonumber(ARGV[3])
local ends = {keep_ms = tonumber(ARGV[4]), expired = ARGV[5], cancelled = ARGV[6], grace_ms = tonumber(ARGV[7]),
  alone_after = tonumber(ARGV[8])}
local MAX_SETTLED = 256  -- a long row of dead entries must not hold Redis up
local opened, is_spent = {}, 0

local function next_entries(stream, count)
  local entries = {}
  for _, pending in ipairs(redis.call('XPENDING', stream, GROUP, '-', '+', count, PARKED)) do
    local claimed = redis.call('XCLAIM', stream, GROUP, worker, 0, pending[1])
    if claimed[1] then entries[#entries + 1] = claimed[1] end
  end
  if #entries < count then
    local read = redis.call('XREADGROUP', 'GROUP', GROUP, worker, 'COUNT', count - #entries, 'STREAMS', stream, '>')
    for _, entry in ipairs(read and read[1] and read[1][2] or {}) do entries[#entries + 1] = entry end
  end
  return entries
end

local function take(lane, count)
  local stream, taken, removed, cost, budget = KEYS[lane], 0, 0, 0, MAX_SETTLED
  while taken < count and budget > 0 do
    local entries = next_entries(stream, math.min(count - taken, budget))
    if #entries == 0 then break end
    for _, entry in ipairs(entries) do
      local fields = entry[2]
      local request = open(prefix, stream, lane, entry[1], fields[2], worker, ends)
      if request then
        taken = taken + 1
        opened[#opened + 1] = request
      else budget = budget - 1 end
      removed, cost = removed + 1, cost + tonumber(fields[4])
    end
  end
  if budget == 0 then is_spent = 1 end
  drained(KEYS[lane], KEYS[lanes + lane], removed, cost, now_ms(), taken)
  return taken
end

local room = {}
for lane = 1, lanes do
  ensure_group(KEYS[lane])
  local quota, cap = tonumber(ARGV[7 + 2 * lane]), tonumber(ARGV[8 + 2 * lane])
  local taken = take(lane, math.min(quota, cap, left))
  left, room[lane] = left - taken, cap - taken
end
for lane = 1, lanes do
  if left > 0 then left = left - take(lane, math.min(room[lane], left)) end
end
local waiting, ages, now = {}, {}, now_ms()
for lane = 1, lanes do
  local oldest = head_ms(KEYS[lane])
  waiting[lane], ages[lane] = depth(KEYS[lane]), oldest > 0 and math.max(0, now - oldest) or 0
end
return {opened, waiting, ages, is_spent}
