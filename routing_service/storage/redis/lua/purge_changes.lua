#!lua
-- Delete some changes that were put aside, and their entries in the log.
-- KEYS  changes put aside, log    ARGV  how many    Gives how many there were.
local rows = redis.call('LPOP', KEYS[1], ARGV[1])
if not rows then return 0 end
for _, row in ipairs(rows) do
  local position = struct.unpack('>I8', row)
  redis.call('XDEL', KEYS[2], '0-' .. string.format('%.0f', position))
end
return #rows
