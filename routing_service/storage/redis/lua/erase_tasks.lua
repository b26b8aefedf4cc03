#!lua
-- Blank user and data of some of a session's tasks.    KEYS  tasks    ARGV  task ids
local HEAD = 29
for _, id in ipairs(ARGV) do
  local row = redis.call('HGET', KEYS[1], id)
  if row then
    if #row < HEAD then return redis.error_reply('CORRUPT task') end
    local status = struct.unpack('>I2', row, HEAD - 3)
    local rest = struct.pack('>I2', 0) .. string.sub(row, HEAD + 1, HEAD + status)
    redis.call('HSET', KEYS[1], id, string.sub(row, 1, HEAD - 2) .. rest)
  end
end
return #ARGV
