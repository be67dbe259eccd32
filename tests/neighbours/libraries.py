"""The libraries, all with the same three methods: attempt, acquire and release."""

import redis

# Longer than any test, with a short pause between two attempts.
TTL = 600
PAUSE = 0.005
ATTEMPTS = 1_000_000


class RedisPy:
    def __init__(self, url, key):
        self.lock = redis.Redis.from_url(url).lock(key, timeout=TTL, sleep=PAUSE)

    def attempt(self):
        return self.lock.acquire(blocking=False)

    def acquire(self):
        self.lock.acquire()

    def release(self):
        try:
            self.lock.release()
            return True
        except redis.exceptions.LockError:
            return False


class RedlockPy:
    def __init__(self, url, key):
        import redlock

        self.once = redlock.Redlock([url], retry_count=1, retry_delay=PAUSE)
        self.patient = redlock.Redlock([url], retry_count=ATTEMPTS, retry_delay=PAUSE)
        self.key = key

    def attempt(self):
        self.lock = self.once.lock(self.key, TTL * 1000)
        return bool(self.lock)

    def acquire(self):
        self.lock = self.patient.lock(self.key, TTL * 1000)
        assert self.lock

    def release(self):
        # The library does not say whether the key was still its own.
        self.patient.unlock(self.lock)
        return True


class PypiRedlock:
    def __init__(self, url, key):
        import redlock

        def lock(times):
            return redlock.RedLock(
                key, [{"url": url}], retry_times=times, retry_delay=int(PAUSE * 1000), ttl=TTL * 1000
            )

        self.once, self.patient = lock(1), lock(ATTEMPTS)

    def attempt(self):
        self.held = self.once
        return self.once.acquire()

    def acquire(self):
        self.held = self.patient
        assert self.patient.acquire()

    def release(self):
        # This library does not say so either.
        self.held.release()
        return True


class Pottery:
    def __init__(self, url, key):
        import pottery

        self.gone = pottery.ReleaseUnlockedLock
        self.lock = pottery.Redlock(key=key, masters={redis.Redis.from_url(url)}, auto_release_time=TTL)

    def attempt(self):
        return self.lock.acquire(blocking=False)

    def acquire(self):
        assert self.lock.acquire()

    def release(self):
        try:
            self.lock.release()
            return True
        except self.gone:
            return False


class PythonRedisLock:
    def __init__(self, url, key):
        import redis_lock

        self.gone = redis_lock.NotAcquired
        self.lock = redis_lock.Lock(redis.Redis.from_url(url), key, expire=TTL)

    def attempt(self):
        return self.lock.acquire(blocking=False)

    def acquire(self):
        # Only the library's own releases wake its waiters, which otherwise try again after the time-out, in seconds.
        while not self.lock.acquire(timeout=1):
            pass

    def release(self):
        try:
            self.lock.release()
            return True
        except self.gone:
            return False


BY_NAME = {
    "redis-py": RedisPy,
    "redlock-py": RedlockPy,
    "redlock": PypiRedlock,
    "pottery": Pottery,
    "python-redis-lock": PythonRedisLock,
}
