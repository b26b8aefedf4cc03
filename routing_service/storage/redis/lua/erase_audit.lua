#!lua
-- Blank user and data of some of a tenant's audit entries.    KEYS  audit    ARGV  positions
-- A damaged entry becomes empty: what it has of a user is not known.
local HEAD = 24
for _, position in ipairs(ARGV) do
  local index = tonumber(position) - 1
  local row = redis.call('LINDEX', KEYS[1], index)
  if row then
    local blank = ''
    if #row >= HEAD then
      local _, _, kind, request, session, user = struct.unpack('>I8I8I2I2I2I2', row)
      local names = kind + request + session
      if HEAD + names + user <= #row then
        blank = string.sub(row, 1, HEAD - 2) .. struct.pack('>I2', 0)
          .. string.sub(row, HEAD + 1, HEAD + names)
      end
    end
    if blank ~= row then redis.call('LSET', KEYS[1], index, blank) end
  end
end
return #ARGV
