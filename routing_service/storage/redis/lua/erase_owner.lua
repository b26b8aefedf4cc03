#!lua
-- Blank the owner in a session's head.    KEYS  head
local HEAD = 35
local head = redis.call('GET', KEYS[1])
if not head then return 0 end
if #head < HEAD then return redis.error_reply('CORRUPT head') end
local owner = struct.unpack('>I2', head, HEAD - 1)
if owner == 0 then return 0 end
local rest = struct.pack('>I2', 0) .. string.sub(head, HEAD + owner + 1)
redis.call('SET', KEYS[1], string.sub(head, 1, HEAD - 2) .. rest)
return 1
