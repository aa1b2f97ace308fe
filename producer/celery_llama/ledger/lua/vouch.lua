-- Say that a worker is alive and has these jobs in work.
-- KEYS: lease, open, kombu's index of unacknowledged messages
-- ARGV: lease in seconds, the worker's clock (kombu compares with it), number of jobs, job ids, delivery tags
-- Only what is there is refreshed: a message that was restored meanwhile is not ours any more. And only forward: a call
-- that was given up and repeated may arrive late.
redis.call('SET', KEYS[1], 1, 'EX', ARGV[1])
local now = redis.call('TIME')[1]
local jobs = tonumber(ARGV[3])
for i = 4, 3 + jobs do redis.call('ZADD', KEYS[2], 'XX', 'GT', now, ARGV[i]) end
for i = 4 + jobs, #ARGV do redis.call('ZADD', KEYS[3], 'XX', 'GT', ARGV[2], ARGV[i]) end
return 'alive'
