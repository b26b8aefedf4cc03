// What a RoutedGraph takes, and what it makes of messages.

import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { create } from "@bufbuild/protobuf";
import { AIMessage, HumanMessage } from "@langchain/core/messages";
import { Annotation, Command, MessagesAnnotation, START, StateGraph } from "@langchain/langgraph";
import { DispatchSchema } from "../src/gen/agent_routing/v1/dispatch_pb.js";
import { itemsOf } from "../src/graphItems.js";
import type { Client } from "../src/index.js";
import { RoutedGraph } from "../src/langgraph.js";

describe("a graph", () => {
  const State = Annotation.Root({ activeAgent: Annotation<string>() });
  const built = (start: (graph: ReturnType<typeof nodes>) => unknown) =>
    (start(nodes()) as ReturnType<typeof nodes>).compile();
  const nodes = () =>
    new StateGraph(State)
      .addNode("front", () => ({}), { ends: ["vat"] })
      .addNode("vat", () => ({}), { ends: ["front"] });

  it("of several agents that always begins at one is refused, and why", () => {
    const fixed = built((graph) => graph.addEdge(START, "front"));
    assert.throws(
      () => new RoutedGraph({} as Client, fixed),
      (error: Error) => error instanceof RangeError && /every run at "front"/.test(`${error}`),
    );
    const routed = built((graph) =>
      graph.addConditionalEdges(START, ({ activeAgent }) => activeAgent, ["front", "vat"]),
    );
    assert.ok(new RoutedGraph({} as Client, routed));
    assert.ok(new RoutedGraph({} as Client, fixed, ["front"]));
  });

  it("gives the images that fit into an answer", () => {
    const image = (bytes: number) => ({
      type: "image" as const,
      mimeType: "image/png",
      data: Buffer.alloc(bytes, 7).toString("base64"),
    });
    const many = new AIMessage({ content: Array.from({ length: 20 }, () => image(10)) });
    assert.equal(itemsOf([many]).length, 16);
    const large = new AIMessage({ content: [image(60_000), image(10_000), image(1_000)] });
    const sizes = itemsOf([large, new HumanMessage("not mine")]).map(
      ({ content }) => content?.value?.length,
    );
    assert.deepEqual(sizes, [60_000, 1_000]);
  });

  it("that goes to another agent without a question to the service fails its turn", async () => {
    const Talk = Annotation.Root({
      ...MessagesAnnotation.spec,
      activeAgent: Annotation<string>(),
    });
    const graph = new StateGraph(Talk)
      .addNode("front", () => new Command({ goto: "vat", update: { activeAgent: "vat" } }), {
        ends: ["vat"],
      })
      .addNode("vat", () => ({ messages: [new AIMessage("21 %")] }))
      .addConditionalEdges(START, ({ activeAgent }) => activeAgent, ["front", "vat"])
      .compile();
    const dispatch = create(DispatchSchema, {
      agent: { agentId: "front" },
      requestId: "r1",
      text: "VAT?",
    });
    const reported: unknown[] = [];
    const client = {
      route: async () => ({ sessionId: "s1", requestId: "r1", reason: "STICKY", dispatch }),
      listAgents: async () => ({ agents: [], agentIdByAlias: {} }),
      completeTurn: async ({ outcome, text }: { outcome: { case: string }; text: string }) =>
        reported.push([outcome.case, text]),
    };
    const routed = new RoutedGraph(client as unknown as Client, graph);
    await assert.rejects(routed.run({ text: "VAT?" }), /went to agent "vat" without asking/);
    assert.deepEqual(reported, [["failure", ""]]);
  });
});
