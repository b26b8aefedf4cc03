#!lua
-- Hide a session in one step. Its changes and tasks are put aside, since the log's
-- entries and the claims of its task ids are deleted later.
-- KEYS  head, changes, requests, tasks, task order, sessions, due, leavings,
--       changes put aside, tasks put aside
-- ARGV  revision, session id, session member, name of what is put aside
-- Gives {"deleted"}, {"conflict", revision}, {"corrupt", what}
local call = redis.call
local head = call('GETRANGE', KEYS[1], 0, 34)
local revision = string.rep('\0', 8)
if head ~= '' then
  if #head < 35 then return {'corrupt', 'head'} end
  revision = string.sub(head, 1, 8)
end
if revision ~= ARGV[1] then return {'conflict', revision} end
if head == '' then return {'deleted'} end
call('ZCARD', KEYS[6])
call('ZCARD', KEYS[7])
call('SCARD', KEYS[8])
call('SADD', KEYS[8], ARGV[4])
if call('EXISTS', KEYS[2]) == 1 then call('RENAME', KEYS[2], KEYS[9]) end
if call('EXISTS', KEYS[4]) == 1 then call('RENAME', KEYS[4], KEYS[10]) end
call('UNLINK', KEYS[1], KEYS[3], KEYS[5])
call('ZREM', KEYS[6], ARGV[2])
if string.byte(head, 25) == 1 then call('ZREM', KEYS[7], string.sub(head, 26, 33) .. ARGV[3]) end
return {'deleted'}
