"""A client of another library, or a hand-written one, that follows the commands on its standard input.

    client.py <library> <url> <key> [<seconds that its clock is ahead>]

It prints `ready`, and then one line for each command:

    try         held, or busy
    acquire     held, however long that takes
    release     released, or "not held"
    count <n>   counted: n times acquire, read the counter, write it plus one, release
"""

import logging
import signal
import sys
import time

import redis

import libraries
import recipes

# The increment is not atomic, so only a lock keeps two clients from losing increments. The pause widens the gap.
COUNTER = "counter"
PAUSE = 0.001

# Much shorter than any lease, so that no expiry is mistaken for a release.
LIFE = 120


class Client:
    def __init__(self, lock, store):
        self.lock = lock
        self.store = store

    def obey(self, words):
        match words:
            case ["try"]:
                return "held" if self.lock.attempt() else "busy"
            case ["acquire"]:
                self.lock.acquire()
                return "held"
            case ["release"]:
                return "released" if self.lock.release() else "not held"
            case ["count", times]:
                for _ in range(int(times)):
                    self.count()
                return "counted"
        raise ValueError(words)

    def count(self):
        self.lock.acquire()
        seen = int(self.store.get(COUNTER) or 0)
        time.sleep(PAUSE)
        self.store.set(COUNTER, seen + 1)
        self.lock.release()
        # Gives other clients a turn, since those that poll are not queued.
        time.sleep(PAUSE)


def main():
    signal.alarm(LIFE)
    # The libraries would warn about a busy lock, which is expected here.
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
