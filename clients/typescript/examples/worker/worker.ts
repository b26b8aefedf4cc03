// Two agents of a help desk, in a process of their own.
//
//   node build/examples/worker/worker.js [127.0.0.1:50051]

import { outcomes } from "@agent-routing/client";
import { Worker } from "@agent-routing/client/worker";

const worker = new Worker(process.argv[2] ?? "127.0.0.1:50051");

worker.agent("front_desk", async () => outcomes.handoff("vat", { reason: "a VAT question" }));

worker.agent("vat", async (turn) => {
  if (!turn.dispatch.locked) return outcomes.followUp("Monthly or quarterly?");
  return `You said: ${turn.text}. Let us look it up.`;
});

await worker.run();
