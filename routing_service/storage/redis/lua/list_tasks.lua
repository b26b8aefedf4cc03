#!lua flags=no-writes
-- Tasks after a place, as place and row in turn.    KEYS  tasks, task order    ARGV  place, limit
local found = {}
local from = '(' .. ARGV[1]
for _, place in ipairs(redis.call('ZRANGE', KEYS[2], from, '+', 'BYLEX', 'LIMIT', 0, ARGV[2])) do
  found[#found + 1] = place
  found[#found + 1] = redis.call('HGET', KEYS[1], string.sub(place, 9)) or ''
end
return found
