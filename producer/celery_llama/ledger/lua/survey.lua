-- One cheap look at the whole: is anything due, and could anything be missing?
-- KEYS: open, expiring, kombu's hash of unacknowledged messages, then the queue's lists
-- ARGV: most due jobs to return
-- Returns {open jobs, messages, due jobs}. More open jobs than messages means that some job may have lost its message.
local messages = redis.call('HLEN', KEYS[3])
for i = 4, #KEYS do messages = messages + redis.call('LLEN', KEYS[i]) end
local now = redis.call('TIME')[1]
local due = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, ARGV[1])
return {redis.call('ZCARD', KEYS[1]), messages, due}
