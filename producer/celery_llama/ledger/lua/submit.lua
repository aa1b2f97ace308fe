-- Enter a job into the ledger, once.
-- KEYS: job, open, expiring, idempotency (only where the job has such a key)
-- ARGV: job id, body, digest of the body, seconds until it must have begun ('' = no limit), priority, metadata ('' = none)
-- Returns {outcome, job id}: 'created', 'existing' (same key and body, or same id), 'conflict' (same key, other body).
local keyed = KEYS[4] ~= nil
if keyed then
  local seen = redis.call('HMGET', KEYS[4], 'job', 'digest')
  if seen[1] then
    if seen[2] == ARGV[3] then return {'existing', seen[1]} end
    return {'conflict', seen[1]}
  end
end
if redis.call('EXISTS', KEYS[1]) == 1 then return {'existing', ARGV[1]} end

local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
redis.call('HSET', KEYS[1], 'status', 'queued', 'attempt', 0, 'body', ARGV[2], 'created', now, 'priority', ARGV[5])
if ARGV[6] ~= '' then redis.call('HSET', KEYS[1], 'metadata', ARGV[6]) end -- apart from the body, which goes at the end
redis.call('ZADD', KEYS[2], now, ARGV[1])
if ARGV[4] ~= '' then redis.call('ZADD', KEYS[3], now + ARGV[4], ARGV[1]) end
if keyed then
  redis.call('HSET', KEYS[4], 'job', ARGV[1], 'digest', ARGV[3])
  redis.call('HSET', KEYS[1], 'idempotency', KEYS[4])
end
return {'created', ARGV[1]}
