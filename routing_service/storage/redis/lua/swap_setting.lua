#!lua
-- Write a setting if it is unchanged.    KEYS  settings
-- ARGV  name, value, 1 if there was one, its old value    Gives 0 or 1
local stands = redis.call('HGET', KEYS[1], ARGV[1])
if ARGV[3] == '1' then
  if stands ~= ARGV[4] then return 0 end
elseif stands then
  return 0
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
