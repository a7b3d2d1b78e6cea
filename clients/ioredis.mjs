// ioredis as it comes: ioredis.mjs MODULES HOST PORT, where the server is empty and of its own.

import assert from "node:assert/strict";
import { createRequire } from "node:module";

const [modules, host, port] = process.argv.slice(2);
const Redis = createRequire(`${modules}/`)("ioredis");
const connect = () => new Redis({ host, port: Number(port), maxRetriesPerRequest: 0 });
const client = connect();
const rq = (verb, ...words) => client.call(`RQ.${verb}`, ...words);

const stories = {
  async saysHello() {
    await new Promise((ready) => client.once("ready", ready));
    assert.equal(await client.ping(), "PONG");
    assert.match(await client.info(), /redis_version:.*\r\n/);
    assert.equal(await client.client("SETNAME", "worker-7"), "OK");
    assert.equal(await client.client("GETNAME"), "worker-7");
    assert.equal(await client.select(0), "OK");
  },

  async pushesPopsAndAcks() {
    const ids = await rq("PUSH", "emails", "one", "two", "three");
    assert.equal(ids.length, 3);
    assert.deepEqual(await rq("INSPECT", "emails", -2, 1), [[ids[1], "two"]]);
    assert.deepEqual(await rq("POP", "emails"), [["emails", ids[0], "one"]]);
    assert.deepEqual(await rq("POP", "COUNT", 5, "emails"), [
      ["emails", ids[1], "two"],
      ["emails", ids[2], "three"],
    ]);
    assert.deepEqual(await rq("POP", "emails"), []);
    assert.deepEqual(await rq("ACK", "emails", ...ids), ids);
    assert.deepEqual(await rq("ACK", "emails", ...ids), []);
  },

  async popsFromSeveralQueuesInOrder() {
    const low = await rq("PUSH", "low", "l1", "l2");
    const high = await rq("PUSH", "high", "h1");
    assert.deepEqual(await rq("POP", "COUNT", 3, "high", "low"), [
      ["high", high[0], "h1"],
      ["low", low[0], "l1"],
      ["low", low[1], "l2"],
    ]);
    await rq("ACK", "low", ...low);
    await rq("ACK", "high", ...high);
  },

  async waitsForAnotherClient() {
    assert.equal(await rq("POP", "BLOCK", 20, "slow"), null);
    const other = connect();
    const waiting = rq("POP", "BLOCK", 4000, "never", "slow");
    const [id] = await other.call("RQ.PUSH", "slow", "late");
    assert.deepEqual(await waiting, [["slow", id, "late"]]);
    assert.deepEqual(await rq("ACK", "slow", id), [id]);
    await other.quit();
  },

  async recoversWhatWasForgotten() {
    const [id] = await rq("PUSH", "forgotten", "x");
    await rq("POP", "forgotten");
    assert.deepEqual(await rq("RECOVER", "forgotten", 10, 60000), []);
    assert.deepEqual(await rq("RECOVER", "forgotten", 10, 0), [[id, "x"]]);
    const [pending] = await rq("INSPECT", "forgotten", "PENDING", 0, 10);
    assert.deepEqual([pending[0], pending[1], pending[4]], [id, "x", 2]);
    assert.deepEqual((await rq("INFO", "forgotten")).slice(0, 4), ["undelivered", 0, "delivered", 1]);
    await rq("ACK", "forgotten", id);
  },

  async pipelines() {
    const pipeline = client.pipeline();
    for (let n = 0; n < 500; n++) pipeline.call("RQ.PUSH", "piped", n);
    pipeline.call("RQ.POP", "COUNT", 1000, "piped");
    const replies = (await pipeline.exec()).map(([error, reply]) => (assert.equal(error, null), reply));
    const popped = replies.pop();
    assert.deepEqual(popped, replies.map(([id], n) => ["piped", id, String(n)]));
    assert.equal((await rq("ACK", "piped", ...replies.flat())).length, 500);
  },

  async keepsEveryByte() {
    const payload = Buffer.from(Array.from({ length: 256000 }, (_, n) => n % 256));
    const [id] = await client.callBuffer("RQ.PUSH", "binary", payload);
    const [[, popped, back]] = await client.callBuffer("RQ.POP", "binary");
    assert.deepEqual(popped, id);
    assert.deepEqual(back, payload);
    await rq("ACK", "binary", id);
  },

  async seesQueuesAsKeys() {
    assert.deepEqual(await client.keys("*"), []);
    const names = Array.from({ length: 25 }, (_, n) => `key:${n}`);
    for (const name of names) await rq("PUSH", name, "x");
    assert.deepEqual((await client.keys("key:*")).sort(), [...names].sort());
    const scanned = [];
    for await (const page of client.scanStream({ match: "key:*", count: 4 })) scanned.push(...page);
    assert.deepEqual(scanned.sort(), [...names].sort());
    assert.equal(await client.exists("key:0", "nothing"), 1);
    assert.equal(await client.type("key:0"), "RELIABLEQ");
    assert.equal(await client.type("nothing"), "none");
    assert.equal(await client.del(...names), 25);
    assert.equal(await client.dbsize(), 0);
  },

  async listens() {
    const subscriber = connect();
    const heard = [];
    let wake = () => {};
    const hear = (...message) => (heard.push(message), wake());
    subscriber.on("message", hear);
    subscriber.on("pmessage", hear);
    const next = async () => {
      while (heard.length === 0) await new Promise((woken) => (wake = woken));
      return heard.shift();
    };
    assert.equal(await subscriber.subscribe("sureq:work:news", "sureq:delete:news"), 2);
    assert.equal(await subscriber.psubscribe("sureq:done:*"), 3);
    const [id] = await rq("PUSH", "news", "one", "two");
    assert.deepEqual(await next(), ["sureq:work:news", "2"]);
    await rq("POP", "news");
    await rq("ACK", "news", id);
    assert.deepEqual(await next(), ["sureq:done:*", "sureq:done:news", id]);
    await assert.rejects(subscriber.call("RQ.POP", "news"), /subscriber mode/);
    assert.equal(await subscriber.unsubscribe("sureq:work:news"), 2);
    await rq("PUSH", "news", "three");
    await client.del("news");
    assert.deepEqual(await next(), ["sureq:delete:news", "2"]);
    await subscriber.quit();
  },

  async hearsErrors() {
    await assert.rejects(client.set("a", "b"), {
      message: "ERR unknown command 'set', with args beginning with: 'a' 'b' ",
    });
    await assert.rejects(rq("PUSH", "q"), { message: "ERR wrong number of arguments for 'rq.push' command" });
    await assert.rejects(rq("POP", "BLOCK", -1, "q"), { message: "ERR BLOCK must be an integer from 0 to 3162240000000" });
    assert.equal(await client.ping(), "PONG");
  },
};

for (const [name, story] of Object.entries(stories)) {
  await story();
  console.log(name);
}
await client.quit();
