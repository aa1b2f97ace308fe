-- Put a failed job back into the queue under its own id, with a fresh stream and a fresh count of attempts.
-- KEYS: job, events, open, failed
-- ARGV: job id
-- Returns {outcome, body, priority}: 'queued', 'not_failed', 'unknown'.
local job = redis.call('HMGET', KEYS[1], 'status', 'attempt', 'body', 'priority')
if not job[1] then return {'unknown', '', ''} end
if job[1] ~= 'failed' or not job[3] then return {'not_failed', '', ''} end
redis.call('DEL', KEYS[2])
redis.call('HDEL', KEYS[1], 'result', 'error', 'started', 'idempotency')
local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
redis.call('HSET', KEYS[1], 'status', 'queued', 'released', job[2], 'created', now)
redis.call('PERSIST', KEYS[1])
redis.call('ZREM', KEYS[4], ARGV[1])
redis.call('ZADD', KEYS[3], now, ARGV[1])
return {'queued', job[3], job[4]}
