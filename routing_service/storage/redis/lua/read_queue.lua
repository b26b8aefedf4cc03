#!lua flags=no-writes
-- Entries of one shard of a queue, as member and lease in turn, and before them the time (µs).
-- KEYS  entries, leases    ARGV  where to begin, limit
local now = redis.call('TIME')
local found = {struct.pack('>I8', tonumber(now[1]) * 1000000 + tonumber(now[2]))}
local members = redis.call('ZRANGE', KEYS[1], ARGV[1], '+', 'BYLEX', 'LIMIT', 0, ARGV[2])
for _, member in ipairs(members) do
  found[#found + 1] = member
  found[#found + 1] = redis.call('HGET', KEYS[2], member) or ''
end
return found
