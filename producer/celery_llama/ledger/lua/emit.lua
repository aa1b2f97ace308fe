-- Append events to the streams of any number of jobs and publish them: one call for a whole flush.
-- KEYS: job 1, events 1, job 2, events 2 ...
-- ARGV: for each job: attempt, number of events, then seq and event for each
-- Returns for each job: 'ok', 'cancel' (written, and somebody asked to cancel), 'fenced' (not written: the job has another
-- owner or has ended). A repeated call is harmless: Redis refuses an entry whose id is not greater than the last.
local answers = {}
local at = 1
for i = 1, #KEYS, 2 do
  local job = redis.call('HMGET', KEYS[i], 'status', 'attempt', 'cancel')
  local attempt, count = ARGV[at], tonumber(ARGV[at + 1])
  at = at + 2
  if job[1] ~= 'running' or job[2] ~= attempt then
    answers[#answers + 1] = 'fenced'
  else
    for k = 0, count - 1 do
      local event = ARGV[at + 2 * k + 1]
      local reply = redis.pcall('XADD', KEYS[i + 1], attempt .. '-' .. ARGV[at + 2 * k], 'e', event)
      if type(reply) == 'table' and reply.err then
        if not string.find(reply.err, 'equal or smaller', 1, true) then return reply end
      else
        redis.call('PUBLISH', KEYS[i + 1], event)
      end
    end
    answers[#answers + 1] = job[3] and 'cancel' or 'ok'
  end
  at = at + 2 * count
end
return answers
