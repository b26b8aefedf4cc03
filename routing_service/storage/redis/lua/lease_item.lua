#!lua
-- Take, extend or give back the lease of an entry.
-- KEYS  entries, leases    ARGV  member, held token or '', token, worker, length of the lease (µs)
-- Gives {} where there is no such entry, else {time (µs), lease as it then is, or ''}
-- A lease: its end, the attempt, 8 bytes each; token, NUL, worker.
local call = redis.call
if not call('ZSCORE', KEYS[1], ARGV[1]) then return {} end
local time = call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local lease = call('HGET', KEYS[2], ARGV[1]) or ''
local ends, attempt, token = 0, 0, ''
if lease ~= '' then
  ends, attempt = struct.unpack('>I8I8', lease)
  token = string.match(string.sub(lease, 17), '^[^%z]*')
end
local granted
if ARGV[2] == '' then
  granted = token == '' or ends <= now
else
  granted = token == ARGV[2]
end
if granted then
  local left = tonumber(ARGV[5])
  if left <= 0 then
    lease = struct.pack('>I8I8', 0, math.max(0, attempt - 1)) .. '\0'
  else
    if ARGV[2] == '' then attempt = attempt + 1 end
    lease = struct.pack('>I8I8', now + left, attempt) .. ARGV[3] .. '\0' .. ARGV[4]
  end
  call('HSET', KEYS[2], ARGV[1], lease)
end
return {struct.pack('>I8', now), lease}
