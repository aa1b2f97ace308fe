-- Celery knows how a job has ended, so no worker needs to come back to it.
-- KEYS: job, open
-- ARGV: job id, result TTL in seconds
-- Returns 'acknowledged', or 'open' if the job has not ended (any more: it may have been put back into the queue).
local status = redis.call('HGET', KEYS[1], 'status')
if status == 'queued' or status == 'running' then return 'open' end
redis.call('ZREM', KEYS[2], ARGV[1])
if status and redis.call('TTL', KEYS[1]) == -1 then redis.call('EXPIRE', KEYS[1], ARGV[2]) end
return 'acknowledged'
