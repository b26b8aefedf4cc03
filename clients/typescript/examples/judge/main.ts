// Judges whose message it is: a TopicDetectorService, with a scripted model in place of yours.
//
//   npm run build && npm run build:test && node build/examples/judge/main.js 50060
//   agent-routing serve --agents agents.yaml --topic-detector grpc://127.0.0.1:50060

import { createServer } from "node:http2";
import type { AddressInfo } from "node:net";
import {
  type JudgeRequest,
  JudgeResponseSchema,
  TopicDetectorService,
} from "@agent-routing/client/v1";
import { create } from "@bufbuild/protobuf";
import { connectNodeAdapter } from "@connectrpc/connect-node";

const words = (text: string): Set<string> =>
  new Set(text.toLowerCase().match(/[\p{L}\p{N}]{4,}/gu) ?? []);

/** Put your classifier here. This one counts the words that a message and an agent share. */
function score(text: string, about: string): number {
  const known = words(about);
  const shared = [...words(text)].filter((word) => known.has(word)).length;
  return shared / (shared + 1);
}

/** Answer with probabilities that are at most 1 together. */
function judge(request: JudgeRequest) {
  const scores = new Map(
    request.agents.map((agent) => [
      agent.agentId,
      score(request.text, [agent.displayName, agent.description, ...agent.examples].join(" ")),
    ]),
  );
  const total = [...scores.values()].reduce((sum, each) => sum + each, 0);
  if (total === 0) {
    return create(JudgeResponseSchema, {
      stay: request.activeAgentId ? 0.9 : 0,
      model: "words-1",
    });
  }
  const best = Math.max(...scores.values());
  const share = (agentId: string) => (best * (scores.get(agentId) ?? 0)) / total;
  return create(JudgeResponseSchema, {
    ranked: request.candidateIds
      .map((agentId) => ({ agentId, probability: share(agentId) }))
      .filter((each) => each.probability > 0)
      .sort((one, other) => other.probability - one.probability)
      .slice(0, 5),
    stay: share(request.activeAgentId),
    model: "words-1",
  });
}

const server = createServer(
  connectNodeAdapter({ routes: (router) => router.service(TopicDetectorService, { judge }) }),
);
server.listen(Number(process.argv[2] ?? 50060), "127.0.0.1", () => {
  console.log(`judging on port ${(server.address() as AddressInfo).port}`);
});
