-- prelude: put before every script. Functions only; it touches nothing by itself.

local GROUP, PARKED = 'workers', 'parked'
local DRAIN_WINDOW_MS = 10000

-- Redis's own clock: the only one on which deadlines and leases are compared.
local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- A lane's stream and its group are made together, so the one is there if the other is.
local function ensure_group(stream)
  if redis.call('EXISTS', stream) == 0 then redis.call('XGROUP', 'CREATE', stream, GROUP, '0', 'MKSTREAM') end
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

-- One or more requests left the queue: move the two-window count behind the drain rate.
local function drained(stats, count, cost, now)
  if count == 0 then return end
  local window = math.floor(now / DRAIN_WINDOW_MS)
  local seen = redis.call('HMGET', stats, 'window', 'left')
  if tonumber(seen[1]) ~= window then
    local previous = tonumber(seen[1]) == window - 1 and seen[2] or 0
    redis.call('HSET', stats, 'window', window, 'left', count, 'previous', previous)
  else
    redis.call('HINCRBY', stats, 'left', count)
  end
  if cost ~= 0 then redis.call('HINCRBY', stats, 'tokens', -cost) end
end

-- Requests a second that left the queue over the last 10 to 20 s.
local function drain_rate(stats, now)
  local seen = redis.call('HMGET', stats, 'window', 'left', 'previous')
  local window, left, previous = tonumber(seen[1]), tonumber(seen[2]) or 0, tonumber(seen[3]) or 0
  local current = math.floor(now / DRAIN_WINDOW_MS)
  if window == current - 1 then previous, left = left, 0
  elseif window ~= current then return 0 end
  return (previous + left) * 1000 / (DRAIN_WINDOW_MS + now % DRAIN_WINDOW_MS)
end

-- Tokens that the log holds, and the attempt that wrote last: the halves of its last id. 0 and nil: no log.
local function position(log)
  local last = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)
  if not last[1] then return 0, nil end
  local attempt, at = string.match(last[1][1], '^(%d+)-(%d+)$')
  return tonumber(at), attempt
end

-- When the oldest waiting request was enqueued (ms; 0: nothing waits). An entry's id begins with that time.
local function head_ms(stream)
  local parked = redis.call('XPENDING', stream, GROUP, '-', '+', 1, PARKED)
  local oldest = parked[1] and tonumber(string.match(parked[1][1], '^%d+')) or 0
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    for field = 1, #group, 2 do
      if group[field] == 'last-delivered-id' then
        local fresh = redis.call('XRANGE', stream, '(' .. group[field + 1], '+', 'COUNT', 1)
        local at = fresh[1] and tonumber(string.match(fresh[1][1], '^%d+')) or 0
        if at > 0 and (oldest == 0 or at < oldest) then oldest = at end
      end
    end
  end
  return oldest
end

local function publish_end(channel, id, attempt, at, outcome)
  if not channel or channel == '' then return end
  redis.call('PUBLISH', channel, string.format('{"frames":[{"id":"%s","attempt":%d,"at":%d,"end":%s}]}',
    id, attempt, at, outcome))
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

-- Give an entry that is pending for `worker` to it as a new attempt, or settle it if it is not worth running.
-- The marker `<attempt>-<position>` opens the log for this attempt and shuts it for all before.
-- returns {lane number, entry, id, attempt, payload, gateway channel, ms to deadline, ms waited before the first
-- attempt, tokens in the log, {piece ...}}, or nil
local function open(prefix, stream, lane_number, entry, id, worker, ends)
  local req, log = prefix .. 'req:' .. id, prefix .. 'log:' .. id
  local h = redis.call('HMGET', req, 'payload', 'cx', 'expires', 'deadline', 'gw', 'attempt', 'queued', 'waited')
  if not h[1] then forget_entry(stream, entry) return nil end
  local now, deadline = now_ms(), tonumber(h[4])
  if h[2] then settle(prefix, stream, entry, id, 'cancelled', ends.cancelled, ends.keep_ms) return nil end
  if now >= deadline or (tonumber(h[6]) == 0 and now >= tonumber(h[3])) then
    settle(prefix, stream, entry, id, 'expired', ends.expired, ends.keep_ms)
    return nil
  end
  local attempt, pieces = redis.call('HINCRBY', req, 'attempt', 1), {}
  if tonumber(h[6]) > 0 then
    for _, logged in ipairs(redis.call('XRANGE', log, '-', '+')) do
      if logged[2][1] == 'p' then pieces[#pieces + 1] = logged[2][2] end
    end
  end
  local at = position(log)
  redis.call('XADD', log, attempt .. '-' .. at, 'm', '')
  redis.call('PEXPIREAT', log, deadline + ends.keep_ms)
  local waited = tonumber(h[8]) or now - tonumber(h[7])
  redis.call('HSET', req, 'state', 'running', 'owner', worker, 'started', now, 'waited', waited)
  return {lane_number, entry, id, attempt, h[1], h[5] or '', deadline - now, waited, at, pieces}
end
