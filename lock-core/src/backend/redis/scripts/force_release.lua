-- Deletes a lock, whoever holds it. A key of another type than a string is no lock: reading it fails, and it stays.
--
-- KEYS[1]  the lock
--
-- Returns 1 if there was one, 0 if not.
redis.call('GET', KEYS[1])
return redis.call('DEL', KEYS[1])
