-- End a job that nobody is running, or ask the worker that runs it to cancel it. A job ended here stays in `open`, and its
-- entry has no TTL, until a worker has met its message and told Celery (acknowledge.lua): the message may be lost, or come late.
-- KEYS: job, events, failed, channel of ends, open, expiring
-- ARGV: job id, 'cancel' or 'expire', prefix of lease keys, result TTL, events TTL, lease (seconds)
-- Returns 'closed' (ended here and now), 'requested' (a live worker will end it), 'ended' (it had ended before),
-- 'begun' (too late to expire), 'unknown'.
local job = redis.call('HMGET', KEYS[1], 'status', 'owner', 'attempt', 'released', 'idempotency')
local status = job[1]
if not status then return 'unknown' end
if status ~= 'queued' and status ~= 'running' then
  redis.call('ZREM', KEYS[6], ARGV[1])
  return 'ended'
end
local expire = ARGV[2] == 'expire'
if expire then
  redis.call('ZREM', KEYS[6], ARGV[1])
  if status ~= 'queued' or tonumber(job[3]) > 0 then return 'begun' end
else
  redis.call('HSET', KEYS[1], 'cancel', 1)
  if status == 'running' and redis.call('EXISTS', ARGV[3] .. job[2]) == 1 then
    local vouched = redis.call('ZSCORE', KEYS[5], ARGV[1]) or 0 -- for this very job, as in claim.lua
    local time = redis.call('TIME')
    if vouched + ARGV[6] > time[1] + time[2] / 1e6 then return 'requested' end
  end
end

-- What earlier attempts have delivered is the partial result.
local seq, tokens, prompt_tokens, cached_tokens = 0, 0, 0, 0
local texts, highest = {}, 0
for _, entry in ipairs(redis.call('XRANGE', KEYS[2], '-', '+')) do
  local event = cjson.decode(entry[2][2])
  seq = event.seq
  if event.type == 'token' then
    local choice = event.choice or 0
    texts[choice] = texts[choice] or {}
    table.insert(texts[choice], event.text or '')
    highest = math.max(highest, choice)
    tokens = tokens + #(event.tokens or {})
  elseif event.type == 'started' then
    prompt_tokens, cached_tokens = event.prompt_tokens or 0, event.cached_tokens or 0
  end
end
local ending = expire and 'failed' or 'cancelled'
local usage = {prompt_tokens = prompt_tokens, completion_tokens = tokens, cached_tokens = cached_tokens}
-- A worker that lost its lease and still writes is refused from here on: the job is not running any more.
local attempt = tonumber(job[3])
local event = {v = 1, attempt = attempt, seq = seq + 1}
local result = {id = ARGV[1], status = ending, usage = usage, attempts = attempt}
if expire then
  event.type = 'failed'
  event.error = {code = 'expired', message = 'the job did not begin before it expired'}
  result.error = event.error
else
  local reasons, choices = {}, {}
  for index = 0, highest do
    reasons[index + 1] = 'cancelled'
    choices[index + 1] = {index = index, text = table.concat(texts[index] or {}), finish_reason = 'cancelled'}
  end
  event.type, event.status, event.finish_reason, event.usage = 'finished', ending, reasons, usage
  result.choices = choices
end
local encoded = cjson.encode(event)
redis.call('XADD', KEYS[2], attempt .. '-' .. (seq + 1), 'e', encoded)
redis.call('HSET', KEYS[1], 'status', ending, 'result', cjson.encode(result))
redis.call('HDEL', KEYS[1], 'owner', 'cancel')
redis.call('ZREM', KEYS[6], ARGV[1])
if expire then
  redis.call('HSET', KEYS[1], 'error', cjson.encode(event.error))
  local now = tonumber(redis.call('TIME')[1])
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now - ARGV[4])
  redis.call('ZADD', KEYS[3], now, ARGV[1])
  redis.call('EXPIRE', KEYS[3], ARGV[4])
  if job[5] then redis.call('DEL', job[5]) end
else
  redis.call('HDEL', KEYS[1], 'body')
  if job[5] then redis.call('EXPIRE', job[5], ARGV[4]) end
end
redis.call('EXPIRE', KEYS[2], ARGV[5])
redis.call('PUBLISH', KEYS[2], encoded)
redis.call('PUBLISH', KEYS[4], encoded)
return 'closed'
