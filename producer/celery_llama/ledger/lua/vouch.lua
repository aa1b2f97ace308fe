-- Say that a worker is alive and has these jobs in work.
-- KEYS: lease, workers, the worker's name, open, kombu's index of unacknowledged messages
-- ARGV: owner, lease in seconds, what the worker says of itself, the worker's clock (kombu compares with it), number of jobs,
-- job ids, delivery tags
-- Only what is there is refreshed: a message that was restored meanwhile is not ours any more. And only forward: a call
-- that was given up and repeated may arrive late. The lease comes first, and a key that is somebody else's costs no other.
local refused
local function try(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then refused = refused or reply end
  return reply
end
local now = redis.call('TIME')[1]
redis.call('SET', KEYS[1], ARGV[3], 'EX', ARGV[2])
try('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
try('ZADD', KEYS[2], now + ARGV[2], ARGV[1])
local named = try('GET', KEYS[3])
if not named or named == ARGV[1] then redis.call('SET', KEYS[3], ARGV[1], 'EX', ARGV[2]) end
local jobs = tonumber(ARGV[5])
for i = 6, 5 + jobs do try('ZADD', KEYS[4], 'XX', 'GT', now, ARGV[i]) end
for i = 6 + jobs, #ARGV do try('ZADD', KEYS[5], 'XX', 'GT', ARGV[4], ARGV[i]) end
return refused or 'alive'
