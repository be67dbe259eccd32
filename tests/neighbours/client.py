"""A client of another library, or a hand-written one, that obeys the lines of its input.

    client.py <library> <url> <key> [<seconds that its clock is ahead>]

It prints `ready`, and then a line for each line that it reads:

    try         held, or busy
    acquire     held, after any length of wait
    release     released, or "not held"
    read        the counter
    write       written: what was read, and one more
    count <n>   counted: n times acquire, read, write, release
"""

import logging
import signal
import sys
import time

import redis

import libraries
import recipes

# The increment is not atomic, so that only a lock keeps two clients from losing increments. The pause widens the gap.
COUNTER = "counter"
PAUSE = 0.001

# Much shorter than any lease, so that no expiry is taken for a release.
LIFE = 120


class Client:
    def __init__(self, lock, store):
        self.lock = lock
        self.store = store
        self.seen = None

    def obey(self, words):
        match words:
            case ["try"]:
                return "held" if self.lock.attempt() else "busy"
            case ["acquire"]:
                self.lock.acquire()
                return "held"
            case ["release"]:
                return "released" if self.lock.release() else "not held"
            case ["read"]:
                self.seen = int(self.store.get(COUNTER) or 0)
                return str(self.seen)
            case ["write"]:
                self.store.set(COUNTER, self.seen + 1)
                return "written"
            case ["count", times]:
                for _ in range(int(times)):
                    self.count()
                return "counted"
        raise ValueError(words)

    def count(self):
        self.lock.acquire()
        self.obey(["read"])
        time.sleep(PAUSE)
        self.obey(["write"])
        self.lock.release()
        # The pause gives other clients a turn: a client that polls has no place in a queue.
        time.sleep(PAUSE)


def main():
    signal.alarm(LIFE)
    # The libraries would warn of a busy lock, which is expected here.
    logging.disable(logging.WARNING)
    library, url, key, *ahead = sys.argv[1:]
    store = redis.Redis.from_url(url)
    makers = libraries.BY_NAME | recipes.BY_NAME
    client = Client(makers[library](url, key, *map(float, ahead)), store)
    store.ping()
    print("ready", flush=True)
    for line in sys.stdin:
        print(client.obey(line.split()), flush=True)


if __name__ == "__main__":
    main()
