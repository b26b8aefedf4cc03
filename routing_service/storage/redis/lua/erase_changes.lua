#!lua
-- Blank some of a session's changes: other events, no answer, no fingerprint. The request's
-- names stay, so that a repeat is still recognized.
-- KEYS  changes    ARGV  first revision, last revision, what stands for the events
-- Gives how many were not blank before, and how many were checked.
local HEAD = 38
local first = tonumber(ARGV[1])
local rows = redis.call('LRANGE', KEYS[1], first - 1, tonumber(ARGV[2]) - 1)
local blanked = 0
for number, row in ipairs(rows) do
  if #row < HEAD then return redis.error_reply('CORRUPT change') end
  local _, _, _, method, request, actor = struct.unpack('>I8I8I8I2I2I2', row)
  local names = string.sub(row, HEAD + 1, HEAD + method + request + actor)
  local lengths = struct.pack('>I4I4', 0, #ARGV[3])
  local blank = string.sub(row, 1, HEAD - 8) .. lengths .. names .. ARGV[3]
  if blank ~= row then
    redis.call('LSET', KEYS[1], first + number - 2, blank)
    blanked = blanked + 1
  end
end
return {blanked, #rows}
