-- watch: one more gateway follows a request, from whatever its log holds on; its worker is told to write at once.
-- KEYS  1 request hash
-- ARGV  1 channel of the gateway   2 control channel prefix   3 message   4 1 if it shall be kept when all have left
-- returns its state | 'cancelling' | '' if nothing is known of it
local req = KEYS[1]
local h = redis.call('HMGET', req, 'state', 'gw', 'owner', 'cx')
if not h[1] then return '' end
if h[1] == 'running' and h[4] then return 'cancelling' end
redis.call('HDEL', req, 'none')  -- allowed when memory is full, and after it so is the next
if ARGV[4] == '1' then redis.call('HSET', req, 'detach', 1) end
for channel in each_channel(h[2]) do
  if channel == ARGV[1] then return h[1] end
end
redis.call('HSET', req, 'gw', (h[2] and h[2] ~= '') and h[2] .. ' ' .. ARGV[1] or ARGV[1])
if h[1] == 'running' then redis.call('PUBLISH', ARGV[2] .. h[3], ARGV[3]) end
return h[1]
