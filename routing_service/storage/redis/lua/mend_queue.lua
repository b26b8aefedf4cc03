#!lua
-- Put or drop one entry of a queue.    KEYS  entries, leases    ARGV  member, 'put' or 'drop'
if ARGV[2] == 'put' then
  redis.call('ZADD', KEYS[1], 0, ARGV[1])
else
  redis.call('ZREM', KEYS[1], ARGV[1])
  redis.call('HDEL', KEYS[2], ARGV[1])
end
