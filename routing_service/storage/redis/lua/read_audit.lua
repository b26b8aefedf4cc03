#!lua flags=no-writes
-- Entries of one session after a position, as position and entry in turn.
-- KEYS  audit, audit of the session    ARGV  position, limit
local found = {}
local from = '(' .. ARGV[1]
local places = redis.call('ZRANGE', KEYS[2], from, '+inf', 'BYSCORE', 'LIMIT', 0, ARGV[2])
for _, position in ipairs(places) do
  found[#found + 1] = position
  found[#found + 1] = redis.call('LINDEX', KEYS[1], tonumber(position) - 1) or ''
end
return found
