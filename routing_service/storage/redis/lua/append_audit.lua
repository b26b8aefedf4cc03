#!lua
-- One audit entry, with its place in the session's entries and its count.
-- KEYS  audit, audit of the session, counts of the session, tenants
-- ARGV  entry, kind and request, tenant
redis.call('LLEN', KEYS[1])
redis.call('ZCARD', KEYS[2])
redis.call('HGET', KEYS[3], ARGV[2])
redis.call('ZADD', KEYS[4], 0, ARGV[3])
local position = redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('ZADD', KEYS[2], position, string.format('%.0f', position))
redis.call('HINCRBY', KEYS[3], ARGV[2], 1)
return position
