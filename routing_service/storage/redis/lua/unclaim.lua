#!lua
-- Give up a claim, if it is still the given one.
-- KEYS  claims of the tenant's shard    ARGV  task id, claim
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
return redis.call('HDEL', KEYS[1], ARGV[1])
