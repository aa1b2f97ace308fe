-- Give up a worker's lease and name: others may take over at once.
-- KEYS: lease, workers, the worker's name
-- ARGV: owner
redis.call('DEL', KEYS[1])
if redis.call('GET', KEYS[3]) == ARGV[1] then redis.call('DEL', KEYS[3]) end
redis.call('ZREM', KEYS[2], ARGV[1])
return 'gone'
