#!lua
-- Claim a task id for a session, or take over a claim that is known not to count.
-- KEYS  claims of the tenant's shard
-- ARGV  task id, claim (token of 8 bytes, session id), the claim to take over; "" = none
-- Gives the claim in force.
local stands = redis.call('HGET', KEYS[1], ARGV[1])
if stands and stands ~= ARGV[3] then return stands end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return ARGV[2]
