#!lua
-- Blank user and data of some of a tenant's audit entries.    KEYS  audit    ARGV  positions
local HEAD = 24
for _, position in ipairs(ARGV) do
  local index = tonumber(position) - 1
  local row = redis.call('LINDEX', KEYS[1], index)
  if row then
    if #row < HEAD then return redis.error_reply('CORRUPT audit entry') end
    local _, _, kind, request, session = struct.unpack('>I8I8I2I2I2', row)
    local names = string.sub(row, HEAD + 1, HEAD + kind + request + session)
    local blank = string.sub(row, 1, HEAD - 2) .. struct.pack('>I2', 0) .. names
    if blank ~= row then redis.call('LSET', KEYS[1], index, blank) end
  end
end
return #ARGV
