// A worker on one queue: node worker.mjs

import { realpathSync } from "node:fs";
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import Redis from "ioredis";

const { env } = process;
const url = env.SUREQ_URL ?? "redis://127.0.0.1:7379";
const queue = env.QUEUE ?? "emails";
const workerName = env.WORKER ?? `${hostname()}-${process.pid}`; // must be unique among live workers
const blockMs = Number(env.BLOCK_MS ?? 5_000); // how long a pop waits
const ttlMs = Number(env.TTL_MS ?? 10_000); // if the process dies, its task is requeued after this time
const leaseMs = Number(env.LEASE_MS ?? 30_000); // if the reply to a pop is lost, its task is requeued then
const graceMs = Number(env.GRACE_MS ?? 20_000); // how long a task may run after SIGTERM

// Your work. Return when it is done; throw to fail the try, and the task is retried after its backoff.
// task.signal is aborted when the task was cancelled or requeued: stop working on it.
async function handle(task) {
  console.log(task.id, task.payload.toString());
}

export class Worker {
  client = connect(blockMs + 5_000);
  heart = connect(ttlMs / 4);
  name = null; // the reply to RQ.WORKER START: the name with the number of this registration
  task = null;
  failures = 0;
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
    // Disconnecting cancels a waiting pop. If it got a task meanwhile, leave() requeues it.
    if (!this.task) this.client.disconnect();
    setTimeout(() => this.leave().finally(() => process.exit(1)), graceMs).unref();
  }

  async pop() {
    try {
      this.name ??= await this.register();
      const words = ["BLOCK", blockMs, "LEASE", leaseMs, "WORKER", this.name, queue];
      const popped = await this.client.callBuffer("RQ.POP", ...words);
      this.failures = 0;
      return popped?.length ? newTask(...popped[0]) : null;
    } catch (error) {
      if (this.stopping) return null;
      // Another worker has this name: registering again would end it, and it would end this one.
      if (error.message.startsWith("GONE replaced")) throw error;
      if (isGone(error)) this.name = null; // the server missed the heartbeat and requeued the task: register again
      else await this.pause("RQ.POP", error);
      return null;
    }
  }

  async register() {
    const name = await this.client.call("RQ.WORKER", "START", workerName, "TTL", ttlMs);
    await this.client.call("RQ.WORKER", "WORK", name, queue); // counts in `workers` of RQ.INFO
    return name;
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
    const reply = await this.insist(...end);
    if (reply === 0 || reply.length === 0) {
      console.error(`task ${task.id}: this delivery is no longer the current one`);
    }
    this.task = null;
  }

  // Repeats a command until it is answered. That is safe: a receipt counts only once.
  async insist(...words) {
    for (;;) {
      try {
        const reply = await this.client.call(...words);
        this.failures = 0;
        return reply;
      } catch (error) {
        await this.pause(words[0], error);
      }
    }
  }

  // Waits with exponential backoff and jitter, or throws the error if a retry cannot help: it can if the server is
  // stopping, cut off from its Redis or out of memory, or one payload is damaged, but not if a role is missing.
  async pause(what, error) {
    if (!/^(CLOSED|DAMAGED|OOM|POISONED|UNAVAILABLE|UNKNOWN) /.test(error.message)) throw error;
    const ms = Math.min(5_000, 100 * 2 ** Math.min(this.failures++, 10)) * (0.5 + Math.random() / 2);
    console.error(`${what}: ${error.message}; retrying in ${Math.round(ms)} ms`);
    await sleep(ms);
  }

  // Sends heartbeats, extends the lease, and notices cancelled and requeued tasks.
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

  // Unregisters: a task that is not finished is requeued at no cost. If this fails, ttlMs does it.
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
  const abort = () => over.abort(new Error("cancelled or requeued"));
  return { queue, id: id.toString(), payload, receipt: receipt.toString(), deliveries, signal: over.signal, abort };
}

// ioredis keeps commands while the server is away, and sends them when it is back.
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

if (realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  await new Worker(handle).run();
  process.exit(); // ioredis may have a timer left
}
