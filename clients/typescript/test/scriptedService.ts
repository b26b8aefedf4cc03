// A scripted routing service on a real port.

import http2 from "node:http2";
import type { AddressInfo } from "node:net";
import { create, type DescMethod, type Message } from "@bufbuild/protobuf";
import type { ConnectRouter, HandlerContext } from "@connectrpc/connect";
import { Code, ConnectError } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { ErrorInfoSchema, RetryInfoSchema } from "../src/gen/google/rpc/error_details_pb.js";
import { RoutingService } from "../src/v1.js";

/** One attempt as it arrived. */
export interface Received {
  method: string;
  request: Message;
  headers: Headers;
  remainingMs: number | undefined;
}

// Requests and answers of all methods go through here.
// biome-ignore lint/suspicious/noExplicitAny: a step takes and gives whichever messages its method has
type Step = (request: any, context: HandlerContext) => any;

/** Each method does what will() said, in order, the last for ever; at first it echoes ids. */
export class ScriptedService {
  readonly received: Received[] = [];
  readonly #scripts = new Map<string, Step[]>();
  #server: http2.Http2Server | undefined;
  readonly #sessions = new Set<http2.ServerHttp2Session>();
  #port = 0;

  get target(): string {
    return `127.0.0.1:${this.#port}`;
  }

  /** How many connections are open. */
  get connections(): number {
    return this.#sessions.size;
  }

  will(method: string, ...steps: Step[]): void {
    this.#scripts.set(method, steps);
  }

  requests(method: string): Message[] {
    return this.received.filter((each) => each.method === method).map((each) => each.request);
  }

  /** Listens, on the port of before if there was one. */
  async start(tls?: http2.SecureServerOptions): Promise<void> {
    const handle = connectNodeAdapter({ routes: (router) => this.#routes(router) });
    const server = tls ? http2.createSecureServer(tls, handle) : http2.createServer(handle);
    server.on("session", (session) => {
      this.#sessions.add(session);
      session.on("close", () => this.#sessions.delete(session));
    });
    await new Promise<void>((resolve, reject) => {
      server.on("error", reject);
      server.listen(this.#port, "127.0.0.1", resolve);
    });
    this.#port = (server.address() as AddressInfo).port;
    this.#server = server;
  }

  /** Breaks every connection, as a crash does, and keeps listening. */
  breakConnections(): void {
    for (const session of this.#sessions) session.destroy();
  }

  async stop(): Promise<void> {
    const server = this.#server;
    this.#server = undefined;
    if (server === undefined) return;
    const closed = new Promise((resolve) => server.close(resolve));
    this.breakConnections();
    await closed;
  }

  #routes(router: ConnectRouter): void {
    const methods = RoutingService.methods as readonly DescMethod[];
    // biome-ignore lint/suspicious/noExplicitAny: one implementation of every method, by its kind
    const implementation: any = {};
    for (const method of methods) {
      implementation[method.localName] =
        method.methodKind === "unary"
          ? async (request: Message, context: HandlerContext) =>
              await this.#next(method, request, context)
          : (request: Message, context: HandlerContext) => this.#next(method, request, context);
    }
    router.service(RoutingService, implementation);
  }

  #next(method: DescMethod, request: Message, context: HandlerContext): unknown {
    this.received.push({
      method: method.name,
      request,
      headers: context.requestHeader,
      remainingMs: context.timeoutMs(),
    });
    const script = this.#scripts.get(method.name) ?? [];
    const step = script.length > 1 ? script.shift() : script[0];
    return (step ?? echoIds(method))(request, context);
  }
}

function echoIds(method: DescMethod): Step {
  return (request) => {
    const answer = create(method.output) as unknown as Record<string, unknown>;
    for (const name of ["sessionId", "taskId", "requestId"]) {
      if (name in answer) answer[name] = request[name];
    }
    return answer;
  };
}

/** Returns a step that refuses, with details as the service sends them. */
export function fails(
  code: Code,
  words: string,
  {
    reason = "",
    metadata = {},
    retryAfterS,
  }: { reason?: string; metadata?: Record<string, string>; retryAfterS?: number } = {},
): Step {
  return () => {
    const details = [];
    if (reason) {
      details.push({
        desc: ErrorInfoSchema,
        value: { domain: "agent_routing", reason, metadata },
      });
    }
    if (retryAfterS !== undefined) {
      details.push({
        desc: RetryInfoSchema,
        value: { retryDelay: { seconds: BigInt(retryAfterS) } },
      });
    }
    throw new ConnectError(words, code, undefined, details);
  };
}

export const unavailable = fails(Code.Unavailable, "the store is away", {
  reason: "STORE_UNAVAILABLE",
});

/** Returns a step that answers too late. */
export function hangs(): Step {
  return (_request, context) =>
    new Promise((_, reject) => {
      context.signal.addEventListener("abort", () => reject(context.signal.reason));
    });
}
