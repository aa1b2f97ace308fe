-- Hand a job back unfinished: somebody else may claim it at once, and the attempt does not count against it.
-- KEYS: job, open
-- ARGV: job id, attempt
-- Returns 'released' or 'fenced'.
local job = redis.call('HMGET', KEYS[1], 'status', 'attempt')
if job[1] ~= 'running' or job[2] ~= ARGV[2] then return 'fenced' end
redis.call('HSET', KEYS[1], 'status', 'queued')
redis.call('HDEL', KEYS[1], 'owner')
redis.call('HINCRBY', KEYS[1], 'released', 1)
redis.call('ZADD', KEYS[2], redis.call('TIME')[1], ARGV[1])
return 'released'
