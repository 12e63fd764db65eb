-- prelude: put before every script. Functions only; it touches nothing by itself.

local GROUP, PARKED = 'workers', 'parked'
local DRAIN_MEMORY_MS = 10000
local MOST_GONE = 1000
local GONE_KEPT_MS = 3600000

-- What the keys of a request's model begin with.
local function prefix_of(key) return string.match(key, '^bw:{[^}]*}:') end

-- Redis's own clock: the only one on which deadlines and leases are compared.
local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- A lane's stream and its group are made together, so the one is there if the other is.
local function ensure_group(stream)
  if redis.call('EXISTS', stream) == 0 or #redis.call('XINFO', 'GROUPS', stream) == 0 then
    redis.call('XGROUP', 'CREATE', stream, GROUP, '0', 'MKSTREAM')
  end
end

-- Requests that wait in a lane. Exact, because ack and del always go together: what is in the stream
-- and not pending has not been delivered; what the parked consumer holds waits again.
local function depth(stream)
  local summary = redis.call('XPENDING', stream, GROUP)
  local waiting = redis.call('XLEN', stream) - summary[1]
  for _, consumer in ipairs(summary[4] or {}) do
    if consumer[1] == PARKED then waiting = waiting + tonumber(consumer[2]) end
  end
  return waiting
end

-- What a lane's drain rate is made of: requests that left while others waited, the time (ms) in which some did, and
-- the time since then. Time in which nobody waits tells nothing: the lane could have given more. Nor does time without
-- a worker: `alive_since` is there while one lives, and says since when.
local function drain(stats, now)
  local h = redis.call('HMGET', stats, 'served', 'busy', 'mark')
  local since = tonumber(redis.call('GET', prefix_of(stats) .. 'alive_since')) or now
  local passed = math.max(0, now - math.max(since, tonumber(h[3]) or now))
  return tonumber(h[1]) or 0, tonumber(h[2]) or 0, passed
end

-- Requests entered the lane: from now on somebody waits. What was seen before an idle time keeps its pace, but weighs
-- the less, the longer that was.
local function waits(stats, now)
  if redis.call('HSETNX', stats, 'mark', now) == 0 then return end
  local h = redis.call('HMGET', stats, 'served', 'busy', 'idle')
  if not (h[1] and h[3]) then return end
  local kept = math.exp(-math.max(0, now - tonumber(h[3])) / DRAIN_MEMORY_MS)
  redis.call('HSET', stats, 'served', string.format('%.3f', h[1] * kept), 'busy', string.format('%.0f', h[2] * kept))
end

-- One or more requests left the queue. If that emptied it, it was not the lane's pace that bound them.
-- `served` of them went to a worker; the others were cancelled or too late, which is no pace of the lane's.
local function drained(stream, stats, count, cost, now, served_now)
  if count == 0 then return end
  redis.call('HINCRBY', stats, 'left', count)
  if depth(stream) == 0 then
    -- That it was emptied says that the pace is this at least.
    local served, busy, passed = drain(stats, now)
    if served_now * busy > served * math.max(1, passed) then redis.call('HDEL', stats, 'served', 'busy') end
    redis.call('HDEL', stats, 'mark')
    redis.call('HSET', stats, 'idle', now)
  elseif served_now > 0 then
    local served, busy, passed = drain(stats, now)
    local kept = math.exp(-passed / DRAIN_MEMORY_MS)  -- what was before fades as more is seen
    redis.call('HSET', stats, 'served', string.format('%.3f', served * kept + served_now),
      'busy', string.format('%.0f', busy * kept + passed), 'mark', now)
  end
  if cost ~= 0 then redis.call('HINCRBY', stats, 'tokens', -cost) end
end

-- Requests a second that leave the lane while others wait, and the time (ms) over which that was seen; 0, 0: unknown.
-- Nothing fades by waiting for the next to leave: where many leave at once, and then none for long, that is a pace too.
local function drain_rate(stats, now)
  local served, busy, passed = drain(stats, now)
  if busy + passed < 1 then return 0, 0 end
  return served * 1000 / (busy + passed), busy + passed
end

-- A rate as a reply can hold it; what moves at all is never told to stand still.
local function mhz(rate) return math.ceil(rate * 1000) end

-- Tokens that the log holds, and the attempt that wrote last: the halves of its last id. 0 and nil: no log.
local function position(log)
  local last = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)
  if not last[1] then return 0, nil end
  local attempt, at = string.match(last[1][1], '^(%d+)-(%d+)$')
  return tonumber(at), attempt
end

-- The newest entry that was handed out: what comes after it waits.
local function last_delivered(stream)
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    for field = 1, #group, 2 do
      if group[field] == 'last-delivered-id' then return group[field + 1] end
    end
  end
  return '0-0'
end

-- When the oldest waiting request was enqueued (ms; 0: nothing waits). An entry's id begins with that time.
local function head_ms(stream)
  local parked = redis.call('XPENDING', stream, GROUP, '-', '+', 1, PARKED)
  local oldest = parked[1] and tonumber(string.match(parked[1][1], '^%d+')) or 0
  local fresh = redis.call('XRANGE', stream, '(' .. last_delivered(stream), '+', 'COUNT', 1)
  local at = fresh[1] and tonumber(string.match(fresh[1][1], '^%d+')) or 0
  if at > 0 and (oldest == 0 or at < oldest) then oldest = at end
  return oldest
end

-- Whether this worker may run a suspect: one worker of a model at a time, so that the others go on.
local function hold_alone(prefix, worker, lease_ms)
  local key = prefix .. 'alone'
  local holder = redis.call('GET', key)
  if holder and holder ~= worker then return false end
  redis.call('SET', key, worker, 'PX', lease_ms)
  return true
end

-- The channels of the gateways that watch a request.
local function each_channel(channels) return string.gmatch(channels or '', '%S+') end

local function publish_end(channels, id, attempt, at, outcome)
  for channel in each_channel(channels) do
    redis.call('PUBLISH', channel, string.format('{"frames":[{"id":"%s","attempt":%d,"at":%d,"end":%s}]}',
      id, attempt, at, outcome))
  end
end

-- Publish frames on a gateway's channel. Whether that gateway has not been there for longer than `grace_ms`: from its
-- first missed publication to this one, if none of them was longer ago than that after the one before.
local function is_gone(prefix, channel, frames, now, grace_ms)
  local gone = prefix .. 'gone'
  if redis.call('PUBLISH', channel, '{"frames":[' .. frames .. ']}') > 0 then
    redis.call('HDEL', gone, channel)
    return false
  end
  local first, last = string.match(redis.call('HGET', gone, channel) or '', '^(%d+)-(%d+)$')
  if not first or now - tonumber(last) > grace_ms then first = now end
  if redis.call('HLEN', gone) > MOST_GONE then redis.call('DEL', gone) end
  redis.call('HSET', gone, channel, string.format('%d-%d', first, now))
  redis.call('PEXPIRE', gone, GONE_KEPT_MS)
  return now - tonumber(first) > grace_ms
end

-- Ends that are no answer: such a request may be queued once more.
local RETRIED = {failed = true, cancelled = true, expired = true}

-- The depth of a lane about to take a request; heals what a lost request hash may have left of its tokens.
local function depth_before(stream, stats)
  ensure_group(stream)
  local queued = depth(stream)
  if queued == 0 then redis.call('HSET', stats, 'tokens', 0) end
  return queued
end

-- Put a request into its lane, behind the `queued` that wait. A hash that is there already is queued once more: attempts and deaths count on, and how
-- it ended is forgotten. `times`: when it expires there (ms from now), its deadline, and how long it is kept beyond.
local function put_into_lane(stream, queued, req, stats, id, lane, cost, times, bell, now, fields)
  local is_known = redis.call('EXISTS', req) == 1
  local turn = queued + (tonumber(redis.call('HGET', stats, 'left')) or 0)
  local entry, deadline = redis.call('XADD', stream, '*', 'id', id, 'cost', cost), now + times.deadline
  if is_known then
    redis.call('HDEL', req, 'outcome', 'tokens', 'ended', 'cx', 'waited', 'started', 'owner', 'gw', 'detach')
  end
  redis.call('HSETNX', req, 'attempt', 0)
  redis.call('HSET', req, 'state', 'queued', 'lane', lane, 'entry', entry, 'cost', cost, 'queued', now,
    'turn', turn, 'expires', now + times.expires, 'deadline', deadline, unpack(fields))
  redis.call('PEXPIREAT', req, deadline + times.keep)
  if is_known then redis.call('PEXPIREAT', prefix_of(req) .. 'log:' .. id, deadline + times.keep) end
  redis.call('HINCRBY', stats, 'tokens', cost)
  waits(stats, now)
  redis.call('PUBLISH', bell, lane)
end

local function forget_entry(stream, entry)
  redis.call('XACK', stream, GROUP, entry)
  redis.call('XDEL', stream, entry)
end

-- End a request that no worker owns (any more). Ack and del come first: they are allowed when memory is full.
-- The attempt moves on and marks the log, so whoever still believes to own it is refused.
local function settle(prefix, stream, entry, id, state, outcome, keep_ms)
  local req, log = prefix .. 'req:' .. id, prefix .. 'log:' .. id
  forget_entry(stream, entry)
  redis.call('HDEL', req, 'payload')
  local attempt = redis.call('HINCRBY', req, 'attempt', 1)
  local at = position(log)
  redis.call('XADD', log, 'NOMKSTREAM', attempt .. '-' .. at, 'm', '')
  redis.call('HSET', req, 'state', state, 'outcome', outcome, 'ended', now_ms(), 'tokens', at)
  redis.call('PEXPIRE', req, keep_ms)
  redis.call('PEXPIRE', log, keep_ms)
  publish_end(redis.call('HGET', req, 'gw'), id, attempt, at, outcome)
end

-- Whether all who watched a request have been gone for too long. Nobody asked to be told of one without a channel.
local function is_orphan(prefix, channels, now, grace_ms)
  local some = false
  for channel in each_channel(channels) do
    if not is_gone(prefix, channel, '', now, grace_ms) then return false end
    some = true
  end
  return some
end

-- Give an entry that is pending for `worker` to it as a new attempt, or settle it if it is not worth running.
-- The marker `<attempt>-<position>` opens the log for this attempt and shuts it for all before.
-- returns {lane number, entry, id, attempt, payload, ms to deadline, ms waited before the first attempt, deaths,
-- tokens in the log, {piece ...}}, or nil
local function open(prefix, stream, lane_number, entry, id, worker, ends)
  local req, log = prefix .. 'req:' .. id, prefix .. 'log:' .. id
  local h = redis.call('HMGET', req, 'payload', 'cx', 'expires', 'deadline', 'gw', 'attempt', 'queued', 'waited',
    'detach', 'deaths')
  if not h[1] then forget_entry(stream, entry) return nil end
  local now, deadline = now_ms(), tonumber(h[4])
  if h[2] or not h[9] and is_orphan(prefix, h[5], now, ends.grace_ms) then
    settle(prefix, stream, entry, id, 'cancelled', ends.cancelled, ends.keep_ms)
    return nil
  end
  if now >= deadline or (not h[8] and now >= tonumber(h[3])) then
    settle(prefix, stream, entry, id, 'expired', ends.expired, ends.keep_ms)
    return nil
  end
  local attempt, pieces = redis.call('HINCRBY', req, 'attempt', 1), {}
  if tonumber(h[10] or 0) >= ends.alone_after then
    redis.call('HSET', req, 'held_back', 1)  -- until its worker begins with it, it cannot be what that dies of
  end
  if attempt > 1 then
    for _, logged in ipairs(redis.call('XRANGE', log, '-', '+')) do
      if logged[2][1] == 'p' then pieces[#pieces + 1] = logged[2][2] end
    end
  end
  local at = position(log)
  redis.call('XADD', log, attempt .. '-' .. at, 'm', '')
  redis.call('PEXPIREAT', log, deadline + ends.keep_ms)
  local waited = tonumber(h[8]) or now - tonumber(h[7])
  redis.call('HSET', req, 'state', 'running', 'owner', worker, 'started', now, 'waited', waited)
  return {lane_number, entry, id, attempt, h[1], deadline - now, waited, tonumber(h[10]) or 0, at, pieces}
end
