// A client of the Node library redlock, with the same commands as client.py.
//
//     node client.js redlock <url> <key>
"use strict";

const readline = require("readline");
const Redis = require("ioredis");
const Redlock = require("redlock");

// Longer than any test.
const TTL = 600000;
const COUNTER = "counter";
const PAUSE = 1;
// Much shorter than a lease, so that no expiry is mistaken for a release.
const LIFE = 120000;

const [url, key] = process.argv.slice(3);
const client = new Redis(url);
const once = new Redlock([client], { retryCount: 0 });
// -1 means forever.
const patient = new Redlock([client], { retryCount: -1, retryDelay: 5, retryJitter: 2 });
let lock = null;

async function attempt() {
  try {
    lock = await once.lock(key, TTL);
    return true;
  } catch (error) {
    if (error instanceof Redlock.LockError) return false;
    throw error;
  }
}

async function acquire() {
  lock = await patient.lock(key, TTL);
}

async function release() {
  try {
    await lock.unlock();
    return true;
  } catch (error) {
    if (error instanceof Redlock.LockError) return false;
    throw error;
  }
}

const pause = () => new Promise((done) => setTimeout(done, PAUSE));

async function count() {
  await acquire();
  const seen = Number((await client.get(COUNTER)) || 0);
  await pause();
  await client.set(COUNTER, seen + 1);
  await release();
  await pause();
}

async function obey([word, times]) {
  switch (word) {
    case "try":
      return (await attempt()) ? "held" : "busy";
    case "acquire":
      await acquire();
      return "held";
    case "release":
      return (await release()) ? "released" : "not held";
    case "count":
      for (let left = Number(times); left > 0; left--) await count();
      return "counted";
  }
  throw new Error(`no such word: ${word}`);
}

async function main() {
  await client.ping();
  console.log("ready");
  for await (const line of readline.createInterface({ input: process.stdin })) {
    console.log(await obey(line.trim().split(" ")));
  }
  client.disconnect();
}

function fail(error) {
  console.error(error);
  process.exit(1);
}

setTimeout(() => fail("this took too long"), LIFE).unref();
main().catch(fail);
