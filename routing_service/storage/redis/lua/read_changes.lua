#!lua flags=no-writes
-- Changes with after < revision < before, newest first if asked for.
-- KEYS  changes    ARGV  after, before, limit, "1" for newest first
local length = redis.call('LLEN', KEYS[1])
local first = tonumber(ARGV[1]) + 1
local last = math.min(tonumber(ARGV[2]) - 1, length)
local limit = tonumber(ARGV[3])
if ARGV[4] == '1' then
  first = math.max(first, last - limit + 1)
else
  last = math.min(last, first + limit - 1)
end
if first > last then return {} end
return redis.call('LRANGE', KEYS[1], first - 1, last - 1)
