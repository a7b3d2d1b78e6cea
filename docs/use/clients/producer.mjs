// Adds a task for each argument: node producer.mjs hello world

import { randomUUID } from "node:crypto";
import Redis from "ioredis";

const url = process.env.SUREQ_URL ?? "redis://127.0.0.1:7379";
const queue = process.env.QUEUE ?? "emails";

// A command whose reply is lost is repeated, for about half a minute.
const client = new Redis(url, {
  retryStrategy: (times) => Math.min(5000, 100 * 2 ** times) * (0.5 + Math.random() / 2),
  maxRetriesPerRequest: 12,
  socketTimeout: 10_000,
});
client.on("error", (error) => console.error(error.message));

// Resolves once the task is on disk. While a task of that name exists, no second one is added.
async function add(payload, name) {
  const [id, added] = await client.call("RQ.ADD", queue, payload, "NAME", name);
  return { id, added: added === 1 };
}

for (const payload of process.argv.slice(2)) {
  // A name that follows from the event, such as "invoice-42", is better: the task cannot be added twice.
  const { id, added } = await add(payload, randomUUID());
  console.log(id, added ? "added" : "exists already");
}
client.disconnect();
