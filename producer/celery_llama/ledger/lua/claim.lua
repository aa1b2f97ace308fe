-- Take up a job: whoever holds the highest attempt number owns the job, and the stream refuses everybody else.
-- KEYS: job, open, expiring, Celery's result (only with the last two arguments)
-- ARGV: job id, owner, prefix of lease keys, body and priority as they came with the message, lease in seconds,
-- this claim's own id: a call that is repeated because its answer was lost is one claim; what Celery's backend stores and
-- publishes for a task that has started, and its TTL in seconds: here, since later it could replace how the task has ended
-- Returns {outcome, attempt, attempts that were handed back, cancel requested, created, body, status, result,
-- seconds}. 'claimed'; 'ended' (somebody finished it; with the result if Celery has not been told); 'busy' (a live worker
-- has it, for so many seconds if it says nothing more); 'expired' (it had to begin earlier: `expire` it). Times are Unix
-- seconds of the server.
local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
local job = redis.call('HMGET', KEYS[1], 'status', 'owner', 'released', 'cancel', 'created', 'body', 'result', 'attempt', 'claim')
local status = job[1]
if not status then -- sent by a plain send_task: the message is all there is, so it becomes the entry
  status = 'queued'
  job[5], job[6] = tostring(now), ARGV[4]
  redis.call('HSET', KEYS[1], 'status', status, 'attempt', 0, 'body', ARGV[4], 'created', now, 'priority', ARGV[5])
  local readable, sent = pcall(cjson.decode, ARGV[4])
  if readable and type(sent) == 'table' and type(sent.metadata) == 'table' then
    redis.call('HSET', KEYS[1], 'metadata', cjson.encode(sent.metadata))
  end
end
if status ~= 'queued' and status ~= 'running' then
  -- An ended job is open until Celery has been told how; told a second time, it would call its links a second time.
  local unacknowledged = redis.call('ZSCORE', KEYS[2], ARGV[1])
  return {'ended', 0, 0, 0, job[5], '', status, unacknowledged and job[7] or '', '0'}
end
if status == 'running' and job[9] == ARGV[7] then
  return {'claimed', tonumber(job[8]), tonumber(job[3] or '0'), job[4] and 1 or 0, job[5], job[6], status, '', '0'}
end
if status == 'running' and job[2] ~= ARGV[2] then -- alive is an owner that has vouched for itself and for this job
  local lease = redis.call('PTTL', ARGV[3] .. job[2]) / 1000
  local vouched = (redis.call('ZSCORE', KEYS[2], ARGV[1]) or 0) + ARGV[6] - now
  local left = math.min(lease, vouched)
  if left > 0 then return {'busy', 0, 0, 0, job[5], '', status, '', tostring(left)} end
end
local deadline = redis.call('ZSCORE', KEYS[3], ARGV[1])
if deadline and tonumber(deadline) < now and redis.call('HGET', KEYS[1], 'attempt') == '0' then
  return {'expired', 0, 0, 0, job[5], '', status, '', '0'}
end
local attempt = redis.call('HINCRBY', KEYS[1], 'attempt', 1)
redis.call('HSET', KEYS[1], 'status', 'running', 'owner', ARGV[2], 'claim', ARGV[7])
redis.call('HSETNX', KEYS[1], 'started', now)
redis.call('ZADD', KEYS[2], now, ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
if KEYS[4] then
  redis.call('SET', KEYS[4], ARGV[8], 'EX', ARGV[9])
  redis.call('PUBLISH', KEYS[4], ARGV[8])
end
return {'claimed', attempt, tonumber(job[3] or '0'), job[4] and 1 or 0, job[5], job[6], status, '', '0'}
