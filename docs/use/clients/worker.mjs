// A worker on one queue: node worker.mjs

import { realpathSync } from "node:fs";
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import Redis from "ioredis";

const { env } = process;
const url = env.SUREQ_URL ?? "redis://127.0.0.1:7379";
const queue = env.QUEUE ?? "emails";
const workerName = env.WORKER ?? `${hostname()}-${process.pid}`; // two at once must not share it
const blockMs = Number(env.BLOCK_MS ?? 5_000); // how long a pop waits
const ttlMs = Number(env.TTL_MS ?? 10_000); // if the process dies, its task is free after this time
const leaseMs = Number(env.LEASE_MS ?? 30_000); // if the answer to a pop is lost, its task is free after this time
const graceMs = Number(env.GRACE_MS ?? 20_000); // how long a task may go on after SIGTERM

// Your work. To return is to say that it is done; to throw, that it failed and is to be tried again.
// task.signal is aborted when the task was cancelled or taken away: nobody wants the result.
async function handle(task) {
  console.log(task.id, task.payload.toString());
}

export class Worker {
  client = connect(blockMs + 5_000);
  heart = connect(ttlMs / 4);
  name = null; // who we are in this life, as RQ.WORKER START answered it
  task = null;
  stopping = false;
  ended = new AbortController();

  constructor(handle) {
    this.handle = handle;
  }

  async run() {
    process.on("SIGTERM", () => this.stop());
    process.on("SIGINT", () => this.stop());
    this.beat();
    try {
      while (!this.stopping) {
        const task = await this.pop();
        if (task && !this.stopping) await this.work(task);
      }
    } finally {
      this.ended.abort();
      await this.leave();
    }
  }

  stop() {
    if (this.stopping) return;
    this.stopping = true;
    console.error(`stopping, in ${graceMs} ms at the latest`);
    // If a pop is under way it is cancelled; should it have got a task, leave() gives it back.
    if (!this.task) this.client.disconnect();
    setTimeout(() => this.leave().finally(() => process.exit(1)), graceMs).unref();
  }

  async pop() {
    try {
      this.name ??= await this.client.call("RQ.WORKER", "START", workerName, "TTL", ttlMs);
      const words = ["BLOCK", blockMs, "LEASE", leaseMs, "WORKER", this.name, queue];
      const popped = await this.client.callBuffer("RQ.POP", ...words);
      return popped?.length ? newTask(...popped[0]) : null;
    } catch (error) {
      if (this.stopping) return null;
      // Another worker has our name: to start anew would end it, and it would end us.
      if (error.message.startsWith("GONE replaced")) throw error;
      if (isGone(error)) this.name = null; // we were taken for dead; what we had is with others
      else await pause("RQ.POP", error);
      return null;
    }
  }

  async work(task) {
    this.task = task;
    let end = ["RQ.ACK", task.queue, task.receipt];
    try {
      await this.handle(task);
    } catch (error) {
      console.error(`task ${task.id} failed:`, error);
      end = ["RQ.RETURN", task.queue, task.receipt, "FAILED", String(error)];
    }
    const ours = await this.insist(...end);
    if (ours === 0 || ours.length === 0) {
      console.error(`task ${task.id} was no longer ours; it is done elsewhere, or again`);
    }
    this.task = null;
  }

  // Sends what ends a task until it is answered. To say it twice does no harm: a receipt counts once.
  async insist(...words) {
    for (;;) {
      try {
        return await this.client.call(...words);
      } catch (error) {
        await pause(words[0], error);
      }
    }
  }

  // Beside all that: says that we live, keeps the lease, and hears what is over.
  async beat() {
    const nextBeat = () => sleep(ttlMs / 4, true, { signal: this.ended.signal }).catch(() => false);
    while (await nextBeat()) {
      const { name, task } = this;
      if (!name) continue;
      try {
        const over = await this.heart.call("RQ.WORKER", "BEAT", name);
        if (!task) continue;
        const isOver = over.includes(task.receipt);
        if (isOver || (await this.heart.call("RQ.EXTEND", task.queue, task.receipt, leaseMs)) !== 1) task.abort();
      } catch (error) {
        console.error(`heartbeat: ${error.message}`);
        if (task && isGone(error)) task.abort();
      }
    }
  }

  // Gives back, at no cost, whatever we still have. If that fails, the time to live does it.
  async leave() {
    const away = sleep(ttlMs / 4, null, { ref: false });
    const stopped = this.name && this.heart.call("RQ.WORKER", "STOP", this.name);
    await Promise.race([stopped, away]).catch((error) => console.error(`RQ.WORKER STOP: ${error.message}`));
    this.client.disconnect();
    this.heart.disconnect();
  }
}

function newTask(queue, id, payload, receipt, deliveries) {
  const over = new AbortController();
  const abort = () => over.abort(new Error("cancelled, or taken away"));
  return { queue, id: id.toString(), payload, receipt: receipt.toString(), deliveries, signal: over.signal, abort };
}

// ioredis keeps commands while the server is away, and sends them again when it is back.
function connect(socketTimeout) {
  const client = new Redis(url, {
    retryStrategy: (times) => Math.min(5_000, 100 * 2 ** times) * (0.5 + Math.random() / 2),
    maxRetriesPerRequest: null,
    socketTimeout,
  });
  client.on("error", (error) => console.error(error.message));
  return client;
}

const isGone = (error) => error.message.startsWith("GONE ");

// A server that is stopping, or cut off from its Redis, is asked again; a missing right is not.
async function pause(what, error) {
  if (!/^(CLOSED|POISONED|UNAVAILABLE|UNKNOWN) /.test(error.message)) throw error;
  console.error(`${what}: ${error.message}`);
  await sleep(500 + 1_000 * Math.random());
}

if (realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  await new Worker(handle).run();
  process.exit(); // ioredis may have a timer left
}
