#!lua
-- Take, renew or give up a lease.    KEYS  lease    ARGV  holder, now, until (µs)    Gives 0 or 1
local stands = redis.call('HMGET', KEYS[1], 'holder', 'until')
local now, ends = tonumber(ARGV[2]), tonumber(ARGV[3])
if stands[1] and stands[1] ~= ARGV[1] and tonumber(stands[2]) > now then return 0 end
if ends <= now then
  redis.call('DEL', KEYS[1])
else
  redis.call('HSET', KEYS[1], 'holder', ARGV[1], 'until', ARGV[3])
end
return 1
