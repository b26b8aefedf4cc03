#!lua
-- One append, whole or not at all: compare the head, then write the change, the state and all
-- that belongs to them. Every refusal comes before the first write; reading every key
-- first also finds one of a wrong type while nothing is written yet.
--
-- KEYS  head, changes, requests, counter, log, sessions, due, tenants
--       [, tasks, task order, fences [, entries and leases of a queue …]]
-- ARGV  base revision, revision, time, rest of the head, due, request field, change, session id,
--       session member, when the session began or '' = any; then for each task: id, token, owner that has it, place, row;
--       then for each entry of a queue: 'put' or 'drop', member
-- Gives {"stored"}, {"seen", change}, {"conflict", revision}, {"taken", task id, owner},
--       {"unclaimed", task ids…}, {"fenced", task ids…}, {"corrupt", what}
local call = redis.call
local FIRST_TASK, TASK_ARGS = 11, 5
-- The entries are last, and each has two keys.
local last_task = #ARGV
if #KEYS > 11 then last_task = #ARGV - (#KEYS - 11) end

local head = call('GETRANGE', KEYS[1], 0, 34)
local revision = string.rep('\0', 8)
if head ~= '' then
  if #head < 35 then return {'corrupt', 'head'} end
  revision = string.sub(head, 1, 8)
end
local length = call('LLEN', KEYS[2])
if length ~= struct.unpack('>I8', revision) then return {'corrupt', 'changes'} end

local field = ARGV[6]
local seen = call('HGET', KEYS[3], field)
if seen and field ~= '' then
  local change = call('LINDEX', KEYS[2], tonumber(seen) - 1)
  if not change then return {'corrupt', 'requests'} end
  return {'seen', change}
end
local is_other = ARGV[10] ~= '' and string.sub(head, 9, 16) ~= ARGV[10]
if revision ~= ARGV[1] or is_other then return {'conflict', revision} end

local unclaimed, fenced = {'unclaimed'}, {'fenced'}
for at = FIRST_TASK, last_task, TASK_ARGS do
  if call('HEXISTS', KEYS[9], ARGV[at]) == 0 then
    if ARGV[at + 2] ~= '' then return {'taken', ARGV[at], ARGV[at + 2]} end
    if ARGV[at + 1] == '' then
      unclaimed[#unclaimed + 1] = ARGV[at]
    elseif call('HGET', KEYS[11], ARGV[at]) == ARGV[at + 1] then
      fenced[#fenced + 1] = ARGV[at]
    end
  end
end
if #unclaimed > 1 then return unclaimed end
if #fenced > 1 then return fenced end
if last_task >= FIRST_TASK then call('ZCARD', KEYS[10]) end
for at = 12, #KEYS, 2 do
  call('ZCARD', KEYS[at])
  call('HLEN', KEYS[at + 1])
end
call('GET', KEYS[4])
call('XLEN', KEYS[5])
call('ZCARD', KEYS[6])
call('ZCARD', KEYS[7])
call('ZCARD', KEYS[8])

-- All checks have passed; the writes follow.
local count = call('INCR', KEYS[4])
call('RPUSH', KEYS[2], struct.pack('>I8', count) .. ARGV[7])
local create = ARGV[3]
if head == '' then
  call('ZADD', KEYS[6], 0, ARGV[8])
  call('ZADD', KEYS[8], 0, string.sub(ARGV[9], 1, string.find(ARGV[9], '\0', 1, true) - 1))
else
  create = string.sub(head, 9, 16)
end
call('SET', KEYS[1], ARGV[2] .. create .. ARGV[4])
if field ~= '' then call('HSET', KEYS[3], field, string.format('%.0f', length + 1)) end

local due = string.sub(head, 25, 33)
if due ~= ARGV[5] then
  if string.byte(due) == 1 then call('ZREM', KEYS[7], string.sub(due, 2) .. ARGV[9]) end
  if string.byte(ARGV[5]) == 1 then call('ZADD', KEYS[7], 0, string.sub(ARGV[5], 2) .. ARGV[9]) end
end

-- The time only serves the order in which readers merge shards.
local now = call('TIME')
local time = struct.pack('>I8', tonumber(now[1]) * 1000000 + tonumber(now[2]))
call('XADD', KEYS[5], '0-' .. string.format('%.0f', count), 'e', time .. ARGV[2] .. ARGV[9])

for at = FIRST_TASK, last_task, TASK_ARGS do
  local id, row = ARGV[at], ARGV[at + 4]
  local stored = call('HGET', KEYS[9], id)
  if stored then
    -- A task does not move within its list.
    row = string.sub(stored, 1, 8) .. string.sub(row, 9)
  else
    call('ZADD', KEYS[10], 0, ARGV[at + 3])
  end
  call('HSET', KEYS[9], id, row)
end
for at = 12, #KEYS, 2 do
  local place = last_task + at - 11
  if ARGV[place] == 'put' then
    call('ZADD', KEYS[at], 0, ARGV[place + 1])
  else
    call('ZREM', KEYS[at], ARGV[place + 1])
    call('HDEL', KEYS[at + 1], ARGV[place + 1])
  end
end
return {'stored'}
