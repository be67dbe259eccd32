"""Hand-written locks, all with the same three methods: attempt, acquire and release."""

import math
import time
import uuid

import redis

# Both longer than any test.
LOCK_TIMEOUT = 600
ACQUIRE_TIMEOUT = 600
PAUSE = 0.001

COMPARE_AND_DELETE = """
if redis.call('get', KEYS[1]) == ARGV[1] then
    return redis.call('del', KEYS[1])
end
return 0
"""


class Recipe:
    def __init__(self, url, key):
        self.client = redis.Redis.from_url(url, decode_responses=True)
        self.key = key
        self.identifier = str(uuid.uuid4())

    def acquire(self):
        deadline = time.monotonic() + ACQUIRE_TIMEOUT
        while not self.attempt():
            assert time.monotonic() < deadline, "not within the acquire time-out"
            time.sleep(PAUSE)


class ReleasedInATransaction(Recipe):
    def release(self):
        with self.client.pipeline() as pipe:
            while True:
                try:
                    pipe.watch(self.key)
                    if pipe.get(self.key) != self.identifier:
                        return False
                    pipe.multi()
                    pipe.delete(self.key)
                    pipe.execute()
                    return True
                except redis.WatchError:
                    continue


class ReleasedByScript(Recipe):
    def release(self):
        return self.client.eval(COMPARE_AND_DELETE, 1, self.key, self.identifier) == 1


class SetnxWithoutExpiry(ReleasedInATransaction):
    def attempt(self):
        return bool(self.client.setnx(self.key, self.identifier))


class SetnxThenExpire(ReleasedInATransaction):
    def attempt(self):
        if self.client.setnx(self.key, self.identifier):
            self.client.expire(self.key, math.ceil(LOCK_TIMEOUT))
            return True
        if self.client.ttl(self.key) == -1:
            # The holder died between the two commands, or has not sent the second one yet.
            self.client.expire(self.key, math.ceil(LOCK_TIMEOUT))
        return False


class SetnxAndExpireInAScript(ReleasedByScript):
    SCRIPT = """
    if redis.call('setnx', KEYS[1], ARGV[1]) == 1 then
        redis.call('expire', KEYS[1], ARGV[2])
        return 1
    end
    return 0
    """

    def attempt(self):
        return self.client.eval(self.SCRIPT, 1, self.key, self.identifier, LOCK_TIMEOUT) == 1


class SetNxPx(ReleasedByScript):
    def attempt(self):
        return bool(self.client.set(self.key, self.identifier, nx=True, px=LOCK_TIMEOUT * 1000))


class TimeStamps(Recipe):
    """The value is the end of the lease, and GETSET takes over a lease that has ended. Not safe: see docs/migrating.md."""

    LOCK_TIMEOUT = 60

    def __init__(self, url, key, ahead=0.0):
        super().__init__(url, key)
        self.ahead = ahead
        self.until = 0.0

    def now(self):
        return time.time() + self.ahead

    def attempt(self):
        until = self.now() + self.LOCK_TIMEOUT
        if not self.client.setnx(self.key, until):
            if number(self.client.get(self.key)) > self.now():
                return False
            if number(self.client.getset(self.key, until)) > self.now():
                return False
        self.until = until
        return True

    def release(self):
        if self.now() >= self.until:
            return False
        # The holder believes that no other client can have the key before `until`.
        self.client.delete(self.key)
        return True


def number(text):
    """Reads a number as PHP, Ruby, Perl, Lua with `or 0` and C do: other text is 0."""
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


BY_NAME = {
    "setnx-without-expiry": SetnxWithoutExpiry,
    "setnx-then-expire": SetnxThenExpire,
    "setnx-and-expire-in-a-script": SetnxAndExpireInAScript,
    "set-nx-px": SetNxPx,
    "time-stamps": TimeStamps,
}
