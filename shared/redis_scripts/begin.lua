-- begin: a suspect that its worker held back until everything else was gone now runs; from here on a death counts.
-- KEYS  1 request hash
-- ARGV  1 attempt   2 worker
-- returns 1 it may run   0 no longer ours
local h = redis.call('HMGET', KEYS[1], 'attempt', 'state', 'owner')
if h[1] ~= ARGV[1] or h[2] ~= 'running' or h[3] ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[1], 'held_back')
return 1
