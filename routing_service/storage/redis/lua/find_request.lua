#!lua flags=no-writes
-- The change that a request made.    KEYS  changes, requests    ARGV  request field
local revision = redis.call('HGET', KEYS[2], ARGV[1])
if not revision then return false end
return redis.call('LINDEX', KEYS[1], tonumber(revision) - 1) or ''
