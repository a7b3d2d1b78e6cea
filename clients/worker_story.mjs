// The worker of docs/use/clients/worker.mjs, which is copied beside this file, with handlers for tests.

import { once } from "node:events";
import { connect } from "node:net";
import { Worker } from "./worker.mjs";

async function handle(task) {
  const [, what, detail] = task.payload.toString().match(/^(\S+) ?(.*)$/);
  const tell = (word) => console.log(word, task.deliveries);
  if (what === "wait") {
    const [host, port] = detail.split(":");
    const gate = connect(Number(port), host).resume();
    await once(gate, "connect");
    tell("began");
    await once(gate, "end");
  } else if (what === "watch") {
    tell("began");
    // Only the first delivery is cancelled or requeued.
    if (task.deliveries === 1) {
      if (!task.signal.aborted) await once(task.signal, "abort");
      tell("over");
    }
    if (detail) throw new Error(detail);
  } else if (what === "fail" && task.deliveries <= Number(detail)) {
    tell("failed");
    throw new Error("no route to host");
  }
  tell("did");
}

await new Worker(handle).run();
process.exit();
