#!lua
-- Make sure that a claim never counts: unless the session has the task, no append with this token
-- can give it the task from now on.
-- KEYS  tasks, fences of the session that holds the claim    ARGV  task id, token, seconds to keep
-- Gives 1 if the session has the task, 0 if it can no longer get it by this claim.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return 1 end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('EXPIRE', KEYS[2], ARGV[3])
return 0
