// A chat frontend with OpenTelemetry's own SDK and the service's client: it routes one message inside
// a span of its own, and prints what a runtime needs of the dispatch. Its spans go to a file, one
// JSON object a line.
//
//   node frontend.mjs CLIENT ADDRESS SPANS_FILE SESSION TEXT       (CLIENT: the client's index.js)

import { appendFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { context, propagation, SpanKind, trace } from "@opentelemetry/api";
import { NodeTracerProvider, SimpleSpanProcessor } from "@opentelemetry/sdk-trace-node";

const [clientModule, address, spansFile, sessionId, text] = process.argv.slice(2);
const { Client } = await import(pathToFileURL(clientModule));

const toFile = {
  export(spans, done) {
    for (const span of spans) {
      const { traceId, spanId } = span.spanContext();
      const parentId = span.parentSpanContext?.spanId ?? null;
      const line = { service: "frontend", name: span.name, traceId, spanId, parentId };
      appendFileSync(spansFile, `${JSON.stringify(line)}\n`);
    }
    done({ code: 0 });
  },
  async shutdown() {},
};
new NodeTracerProvider({ spanProcessors: [new SimpleSpanProcessor(toFile)] }).register();
const tracer = trace.getTracer("frontend");
const client = new Client(address);

await tracer.startActiveSpan("chat message", { kind: SpanKind.SERVER }, async (message) => {
  await tracer.startActiveSpan("Route", { kind: SpanKind.CLIENT }, async (call) => {
    const headers = {};
    propagation.inject(context.active(), headers);
    const turn = await client.route(
      { sessionId, userId: "ana", text },
      { headers, timeoutMs: 30_000 },
    );
    const { requestId, agent, traceparent } = turn.response.dispatch;
    console.log(JSON.stringify({ requestId, agentId: agent.agentId, traceparent }));
    call.end();
  });
  message.end();
});
client.close();
