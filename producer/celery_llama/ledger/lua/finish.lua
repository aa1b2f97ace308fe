-- End a job: the terminal event, the result and the status in one step. It stays in `open` until Celery has been told.
-- KEYS: job, events, failed, channel of ends
-- ARGV: job id, attempt, status, seq, terminal event, result, result TTL, events TTL (seconds)
-- Returns 'finished', 'repeated' (this attempt finished it before), 'fenced' (not ours any more).
local job = redis.call('HMGET', KEYS[1], 'status', 'attempt', 'idempotency')
if job[2] ~= ARGV[2] then return 'fenced' end
if job[1] ~= 'running' then
  local same = job[1] == ARGV[3] and redis.call('HGET', KEYS[1], 'result') == ARGV[6]
  return same and 'repeated' or 'fenced'
end

redis.call('XADD', KEYS[2], ARGV[2] .. '-' .. ARGV[4], 'e', ARGV[5])
redis.call('HSET', KEYS[1], 'status', ARGV[3], 'result', ARGV[6])
redis.call('HDEL', KEYS[1], 'owner', 'cancel')
if ARGV[3] == 'failed' then
  redis.call('HSET', KEYS[1], 'error', cjson.encode(cjson.decode(ARGV[5]).error))
  local now = tonumber(redis.call('TIME')[1])
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now - ARGV[7])
  redis.call('ZADD', KEYS[3], now, ARGV[1])
  redis.call('EXPIRE', KEYS[3], ARGV[7])
  if job[3] then redis.call('DEL', job[3]) end -- a job that failed may be submitted again under its key
else
  redis.call('HDEL', KEYS[1], 'body') -- kept only for a replay, and only a failed job is replayed
  if job[3] then redis.call('EXPIRE', job[3], ARGV[7]) end
end
redis.call('EXPIRE', KEYS[1], ARGV[7])
redis.call('EXPIRE', KEYS[2], ARGV[8])
redis.call('PUBLISH', KEYS[2], ARGV[5])
redis.call('PUBLISH', KEYS[4], ARGV[5])
return 'finished'
