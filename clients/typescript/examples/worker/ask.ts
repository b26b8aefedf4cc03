// The frontend's half: asks the agents of worker.ts, and shows their answers.
//
//   node build/examples/worker/ask.js [127.0.0.1:50051]

import { Client } from "@agent-routing/client";

const client = new Client(process.argv[2] ?? "127.0.0.1:50051");
for (const text of ["How much VAT do I owe?", "I don't know"]) {
  const answer = await client.ask({ text, sessionId: "chat-1", userId: "ana" });
  console.log(`ana: ${text}\n${answer.agentId}: ${answer.text}`);
}
client.close();
