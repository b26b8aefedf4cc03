// The client against a scripted service.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, afterEach, before, beforeEach, describe, test } from "node:test";
import { create } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { parseCommand } from "../src/awayCommands.js";
import {
  Client,
  type ClientOptions,
  DeadlineExceeded,
  ERRORS_BY_REASON,
  HandoffRefused,
  homeFile,
  InvalidRequest,
  MarkerFilter,
  newUuid7,
  Overloaded,
  outcomes,
  RevisionMismatch,
  RoutingError,
  StoreUnavailable,
  Unavailable,
  UnknownSession,
} from "../src/index.js";
import { KnownAgents } from "../src/knownAgents.js";
import {
  type CompleteTurnRequest,
  ErrorReasonSchema,
  type RouteRequest,
  RouteRequestSchema,
  RouteResponseSchema,
  RouteStreamResponseSchema,
  type WatchSessionRequest,
  WatchSessionResponseSchema,
} from "../src/v1.js";
import { fails, hangs, ScriptedService, unavailable } from "./scriptedService.js";

const UUID7 = /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/;
/** Repeats at once, so that tests need not wait. */
const AT_ONCE = { backoffFirstMs: 0, backoffMaxMs: 0 };

let service: ScriptedService;
const clients: Client[] = [];

beforeEach(async () => {
  service = new ScriptedService();
  await service.start();
});
afterEach(async () => {
  for (const client of clients.splice(0)) client.close();
  await service.stop();
});

function made(options: ClientOptions = {}, target: string | string[] = service.target): Client {
  const client = new Client(target, { retry: AT_ONCE, timeoutMs: 10_000, ...options });
  clients.push(client);
  return client;
}

function routedTo(agentId: string, revision = 1n) {
  return (request: RouteRequest) =>
    create(RouteResponseSchema, {
      sessionId: request.sessionId,
      taskId: request.taskId,
      requestId: request.requestId,
      revision,
      dispatch: { requestId: request.requestId, agent: { agentId }, text: request.text },
    });
}

async function thrown(promise: Promise<unknown>): Promise<unknown> {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  return assert.fail("nothing was thrown");
}

describe("a marker", () => {
  test("is never shown, however the text is cut into tokens", () => {
    const file = new URL("../../../../tests/clients/vectors/text/markers.json", import.meta.url);
    const { cases } = JSON.parse(readFileSync(file, "utf8")) as {
      cases: { text: string; shown: string }[];
    };
    assert.ok(cases.length >= 200);
    for (const { text, shown } of cases) {
      for (const size of [1, 2, 7, 10_000]) {
        const filter = new MarkerFilter();
        const letters = [...text];
        let made = "";
        for (let at = 0; at < letters.length; at += size) {
          made += filter.feed(letters.slice(at, at + size).join(""));
        }
        assert.equal(made + filter.end(), shown, text);
      }
    }
  });
});

describe("an outage", () => {
  test("leaves commands readable as the service reads them", () => {
    const file = new URL("../../../../tests/clients/vectors/text/commands.json", import.meta.url);
    const { cases } = JSON.parse(readFileSync(file, "utf8")) as {
      cases: { text: string; name: string | null; rest: string | null }[];
    };
    assert.ok(cases.length >= 60);
    for (const { text, name, rest } of cases) {
      const expected = name === null ? undefined : { name, rest };
      assert.deepEqual(parseCommand(text), expected, text);
    }
  });

  test("finds the home agent in the file of an earlier process", () => {
    const path = join(mkdtempSync(join(tmpdir(), "home-")), "home");
    homeFile(path).write("coordinator");
    assert.equal(homeFile(path).read(), "coordinator");
    assert.equal(homeFile(join(path, "none")).read(), "");
    assert.ok(new KnownAgents({ homeCache: homeFile(path) }).mayDecide(create(RouteRequestSchema)));
  });
});

describe("ids", () => {
  test("are made where they are left out, and kept where they are given", async () => {
    const client = made();
    const first = await client.route({ text: "hello" });
    assert.match(first.requestId, UUID7);
    assert.equal(first.sessionId, "");
    const requestId = newUuid7();
    const second = await client.route({ text: "hello", sessionId: "chat-42", requestId });
    assert.equal(second.requestId, requestId);
    assert.equal(second.sessionId, "chat-42");
  });

  test("leave the session to the task where one is given", async () => {
    await made().route({ text: "hello", taskId: newUuid7() });
    const [request] = service.requests("Route") as RouteRequest[];
    assert.equal(request?.sessionId, "");
  });

  test("sort by time", async () => {
    const earlier = newUuid7();
    while (Date.now() === Number.parseInt(earlier.replace("-", "").slice(0, 12), 16)) {
      await new Promise((resolve) => setImmediate(resolve));
    }
    assert.ok(earlier < newUuid7());
  });
});

describe("errors", () => {
  test("have a class for every reason of the contract", () => {
    const reasons = ErrorReasonSchema.values
      .map((value) => value.localName)
      .filter((name) => name !== "UNSPECIFIED");
    assert.deepEqual(reasons.toSorted(), Object.keys(ERRORS_BY_REASON).toSorted());
  });

  test("are of their reason's class, with metadata and method", async () => {
    service.will(
      "Status",
      fails(Code.NotFound, 'session "x" is not known', {
        reason: "UNKNOWN_SESSION",
        metadata: { session_id: "x" },
      }),
    );
    const error = await thrown(made().status({ sessionId: "x" }));
    assert.ok(error instanceof UnknownSession);
    assert.equal(error.name, "UnknownSession");
    assert.equal(error.message, 'session "x" is not known');
    assert.equal(error.sessionId, "x");
    assert.equal(error.method, "Status");
    assert.equal(error.codeName, "NOT_FOUND");
  });

  test("have revisions as numbers", async () => {
    service.will(
      "SetActiveAgent",
      fails(Code.Aborted, "elsewhere", {
        reason: "REVISION_MISMATCH",
        metadata: { expected_revision: "17", revision: "18" },
      }),
    );
    const error = await thrown(
      made().setActiveAgent({ sessionId: "x", agentId: "vat", expectedRevision: 17 }),
    );
    assert.ok(error instanceof RevisionMismatch);
    assert.deepEqual([error.expected, error.actual], [17n, 18n]);
    assert.equal(service.received.length, 1, "an answer is not repeated");
  });

  test("of a reason not known here are their code's family", async () => {
    service.will("Status", fails(Code.InvalidArgument, "new", { reason: "SOMETHING_NEW" }));
    const error = await thrown(made().status({ sessionId: "x" }));
    assert.ok(error instanceof InvalidRequest);
    assert.equal(error.reason, "SOMETHING_NEW");
  });

  test("without our details keep no foreign reason", async () => {
    service.will("Status", fails(Code.PermissionDenied, "the proxy says no"));
    const error = await thrown(made().status({ sessionId: "x" }));
    assert.ok(error instanceof RoutingError);
    assert.equal(error.reason, "");
    assert.match(error.message, /the proxy says no/);
  });

  test("that cannot be sent fail at once", async () => {
    assert.throws(() => new Client("http://127.0.0.1:1"), /give HOST:PORT/);
    assert.throws(() => new Client([]), /no target/);
    assert.throws(() => made({ retry: { attemptsMax: 0 } }), /attemptsMax is 0/);
    assert.throws(() => made({ fallback: { sessionsMax: 0 } }), /sessionsMax is 0/);
    const error = await thrown(made().status({ sessionId: "x" }, { timeoutMs: 0 }));
    assert.ok(error instanceof RangeError);
    assert.throws(
      () => new Client("chat.example.org:443", { token: () => "secret" }),
      /in plain text/,
    );
  });
});

describe("retries", () => {
  test("send the same request until it is answered", async () => {
    service.will("Route", unavailable, unavailable, routedTo("vat"));
    const info = {};
    const result = await made().route({ text: "hello" }, { info });
    assert.equal(result.agentId, "vat");
    assert.deepEqual(info, { attempts: 3, replayed: false });
    const requests = service.requests("Route") as RouteRequest[];
    assert.equal(new Set(requests.map((each) => each.requestId)).size, 1);
    assert.equal(new Set(requests.map((each) => each.sessionId)).size, 1);
  });

  test("end after four attempts", async () => {
    service.will("SetActiveAgent", unavailable);
    const error = await thrown(made().setActiveAgent({ sessionId: "x", agentId: "vat" }));
    assert.ok(error instanceof StoreUnavailable);
    assert.equal(error.attempts, 4);
    assert.match(error.requestId, UUID7);
    assert.equal(service.received.length, 4);
  });

  test("wait as long as the service asks, and not beyond the call's time", async () => {
    const busy = { reason: "STORE_UNAVAILABLE", retryAfterS: 1 };
    service.will("Status", fails(Code.Unavailable, "busy", busy), () => ({ sessionId: "x" }));
    const start = performance.now();
    await made().status({ sessionId: "x" });
    assert.ok(performance.now() - start >= 999);
    service.will("Status", fails(Code.Unavailable, "busy", { ...busy, retryAfterS: 3600 }));
    const error = await thrown(made().status({ sessionId: "x" }));
    assert.ok(error instanceof StoreUnavailable);
    assert.equal(error.retryAfterMs, 3_600_000);
    assert.equal(error.attempts, 1);
  });

  test("go on with the next replica", async () => {
    const away = new ScriptedService();
    await away.start();
    await away.stop();
    service.will("Route", routedTo("vat"));
    const client = made({}, [away.target, service.target]);
    assert.equal((await client.route({ text: "hello" })).agentId, "vat");
    const info: { attempts?: number } = {};
    await client.route({ text: "again" }, { info });
    assert.equal(info.attempts, 1, "it stays with the one that answers");
  });

  test("repeat a call whose connection broke", async () => {
    service.will(
      "Route",
      (request) => {
        service.breakConnections();
        return routedTo("vat")(request);
      },
      routedTo("vat"),
    );
    const result = await made().route({ text: "hello" });
    assert.equal(result.degraded, false);
    assert.equal(service.received.length, 2);
  });

  test("do not repeat what an overloaded service refused with a word", async () => {
    service.will("Status", fails(Code.ResourceExhausted, "busy", { reason: "OVERLOADED" }));
    assert.ok((await thrown(made().status({ sessionId: "x" }))) instanceof Overloaded);
    assert.equal(service.received.length, 1);
  });

  test("stop while most calls fail", async () => {
    service.will("Status", unavailable);
    const client = made();
    for (let calls = 0; calls < 20; calls++) await thrown(client.status({ sessionId: "x" }));
    assert.ok(service.received.length < 70, `${service.received.length} attempts of 20 calls`);
  });
});

describe("time", () => {
  test("is sent along, and ends the call", async () => {
    service.will("Status", hangs());
    const error = await thrown(made().status({ sessionId: "x" }, { timeoutMs: 150 }));
    assert.ok(error instanceof DeadlineExceeded);
    assert.match(error.message, /within 0.15 s/);
    const remaining = service.received[0]?.remainingMs ?? 0;
    assert.ok(remaining > 0 && remaining <= 150);
  });

  test("a signal gives the call up, with its reason", async () => {
    service.will("Status", hangs());
    const controller = new AbortController();
    const reason = new Error("the user left");
    const pending = made().status({ sessionId: "x" }, { signal: controller.signal });
    while (service.received.length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
    controller.abort(reason);
    assert.equal(await thrown(pending), reason);
    assert.equal(service.received.length, 1);
  });

  test("a closed client says so", async () => {
    const client = made();
    client.close();
    client.close();
    assert.match(String(await thrown(client.status({ sessionId: "x" }))), /is closed/);
  });

  test("closing ends calls on their way", async () => {
    service.will("Status", hangs());
    const client = made();
    const pending = client.status({ sessionId: "x" });
    while (service.received.length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
    client.close();
    assert.match(String(await thrown(pending)), /is closed/);
  });
});

describe("metadata", () => {
  test("tells of replayed answers", async () => {
    service.will("Route", (request, context) => {
      context.responseTrailer.set("agent-routing-replayed", "true");
      return routedTo("vat")(request);
    });
    assert.equal((await made().route({ text: "hello" })).replayed, true);
  });

  test("carries tenant, headers and a token for each attempt", async () => {
    let tokens = 0;
    service.will("Status", unavailable, () => ({ sessionId: "x" }));
    const client = made({
      tenant: "acme",
      headers: { "x-frontend": "web" },
      token: async () => `token-${++tokens}`,
    });
    await client.status({ sessionId: "x" }, { headers: { traceparent: "00-1-2-01" } });
    const [first, second] = service.received.map((each) => each.headers);
    assert.equal(first?.get("authorization"), "Bearer token-1");
    assert.equal(second?.get("authorization"), "Bearer token-2");
    assert.equal(second?.get("agent-routing-tenant"), "acme");
    assert.equal(second?.get("x-frontend"), "web");
    assert.equal(second?.get("traceparent"), "00-1-2-01");
  });

  test("a token that cannot be had is the caller's to know", async () => {
    const none = new Error("no token today");
    const client = made({
      token: () => {
        throw none;
      },
    });
    assert.equal(await thrown(client.status({ sessionId: "x" })), none);
    assert.equal(await thrown(client.watchSession({ sessionId: "x" }).next()), none);
    const stream = client.stream();
    assert.equal(await thrown(stream.route({ text: "hello" })), none);
    await stream.close();
    assert.equal(service.received.length, 0);
  });
});

describe("the fallback", () => {
  const quick = { timeoutMs: 500, retry: { ...AT_ONCE, attemptsMax: 2 } };

  test("keeps the last agent of the session while the service is away", async () => {
    const degraded: string[] = [];
    const client = made({ ...quick, onDegraded: (result) => degraded.push(result.agentId ?? "") });
    service.will("Route", routedTo("vat"));
    await client.route({ text: "hello", sessionId: "chat-42" });
    await service.stop();
    const result = await client.route({ text: "and now?", sessionId: "chat-42" });
    assert.equal(result.degraded, true);
    assert.equal(result.agentId, "vat");
    assert.equal(result.text, "and now?");
    assert.equal(result.reason, "DEGRADED");
    assert.ok(result.error instanceof Unavailable);
    assert.match(result.dispatch?.reasonDetail ?? "", /^degraded: /);
    assert.deepEqual(degraded, ["vat"]);
    await service.start();
    service.will("Route", routedTo("vat", 2n));
    const routed = await client.route({
      text: "and now?",
      sessionId: "chat-42",
      requestId: result.requestId,
    });
    assert.equal(routed.degraded, false);
  });

  test("is the supervisor for sessions of which nothing is known", async () => {
    const client = made({ ...quick, fallback: { supervisorId: "coordinator" } });
    await service.stop();
    const result = await client.route({ text: "hello" });
    assert.equal(result.agentId, "coordinator");
    assert.equal(result.response.supervisorBypassed, false);
  });

  test("is nothing where no agent is known, for dry runs, and where it is off", async () => {
    await service.stop();
    assert.ok((await thrown(made(quick).route({ text: "hi" }))) instanceof Unavailable);
    const dry = made({ ...quick, fallback: { supervisorId: "coordinator" } });
    assert.ok((await thrown(dry.route({ text: "hi", validateOnly: true }))) instanceof Unavailable);
    const off = made({ ...quick, fallback: false });
    assert.ok((await thrown(off.route({ text: "hi" }))) instanceof Unavailable);
  });

  test("never hides a decision", async () => {
    const client = made({ fallback: { supervisorId: "coordinator" } });
    service.will("Route", fails(Code.PermissionDenied, "not yours", { reason: "OWNER_MISMATCH" }));
    assert.ok((await thrown(client.route({ text: "hi" }))) instanceof RoutingError);
  });

  test("forgets a session that is gone, and takes no older answer for newer", async () => {
    const client = made({ ...quick, fallback: { supervisorId: "coordinator" } });
    service.will("Route", routedTo("vat", 5n), routedTo("payroll", 3n));
    await client.route({ text: "1", sessionId: "chat-42" });
    await client.route({ text: "2", sessionId: "chat-42" });
    service.will("Route", unavailable);
    assert.equal((await client.route({ text: "3", sessionId: "chat-42" })).agentId, "vat");
    service.will("Status", fails(Code.NotFound, "gone", { reason: "UNKNOWN_SESSION" }));
    await thrown(client.status({ sessionId: "chat-42" }));
    assert.equal((await client.route({ text: "4", sessionId: "chat-42" })).agentId, "coordinator");
  });
});

describe("a watch", () => {
  const change = (revision: bigint) =>
    create(WatchSessionResponseSchema, {
      kind: { case: "change", value: { sessionId: "chat-42", revision } },
    });
  const heartbeat = (revision: bigint) =>
    create(WatchSessionResponseSchema, { kind: { case: "heartbeat", value: { revision } } });

  async function revisions(client: Client, count: number, afterRevision?: bigint) {
    const seen: bigint[] = [];
    const watch = client.watchSession({
      sessionId: "chat-42",
      ...(afterRevision === undefined ? {} : { afterRevision }),
    });
    for await (const { revision } of watch) {
      seen.push(revision);
      if (seen.length === count) break;
    }
    return seen;
  }

  test("goes on where it was when its connection breaks", async () => {
    service.will(
      "WatchSession",
      async function* () {
        yield heartbeat(2n);
        yield change(1n);
        yield change(2n);
        await new Promise((resolve) => setTimeout(resolve, 20));
        service.breakConnections();
        await new Promise(() => undefined);
      },
      async function* () {
        yield heartbeat(3n);
        yield change(3n);
        await new Promise(() => undefined);
      },
    );
    assert.deepEqual(await revisions(made(), 3, 0n), [1n, 2n, 3n]);
    const asked = service.requests("WatchSession") as WatchSessionRequest[];
    assert.deepEqual(
      asked.map((each) => each.afterRevision),
      [0n, 2n],
    );
  });

  test("begins from now on, and does not miss what comes while it is away", async () => {
    service.will(
      "WatchSession",
      async function* () {
        yield heartbeat(7n);
      },
      async function* () {
        yield heartbeat(8n);
        yield change(8n);
        await new Promise(() => undefined);
      },
    );
    assert.deepEqual(await revisions(made(), 1), [8n]);
    const asked = service.requests("WatchSession") as WatchSessionRequest[];
    assert.deepEqual(
      asked.map((each) => each.afterRevision),
      [undefined, 7n],
    );
  });

  test("ends with a refusal, after the time it may be away, and when given up", async () => {
    service.will("WatchSession", fails(Code.NotFound, "gone", { reason: "UNKNOWN_SESSION" }));
    assert.ok((await thrown(revisions(made(), 1))) instanceof UnknownSession);
    service.will("WatchSession", unavailable);
    const slow = made({ retry: { backoffFirstMs: 40, backoffMaxMs: 40 } });
    const watch = slow.watchSession({ sessionId: "chat-42" }, { awayMsMax: 100 });
    assert.ok((await thrown(watch.next())) instanceof Unavailable);
    service.will("WatchSession", async function* () {
      yield heartbeat(1n);
      await new Promise(() => undefined);
    });
    const before = service.received.length;
    const controller = new AbortController();
    const pending = made()
      .watchSession({ sessionId: "chat-42" }, { signal: controller.signal })
      .next();
    while (service.received.length === before) await new Promise((r) => setTimeout(r, 5));
    controller.abort(new Error("enough"));
    assert.match(String(await thrown(pending)), /enough/);
  });

  test("that is left tells the service to stop", async () => {
    let stopped: () => void = () => undefined;
    const whenStopped = new Promise<void>((resolve) => {
      stopped = resolve;
    });
    service.will("WatchSession", async function* (_request, context) {
      context.signal.addEventListener("abort", () => stopped());
      yield heartbeat(0n);
      yield change(1n);
      await new Promise(() => undefined);
    });
    await revisions(made(), 1, 0n);
    await whenStopped;
  });
});

describe("a stream", () => {
  const answer = (request: RouteRequest) =>
    create(RouteStreamResponseSchema, {
      requestId: request.requestId,
      sessionId: request.sessionId,
      result: { case: "route", value: routedTo("vat")(request) },
    });

  test("carries many messages at once, each with its own answer or error", async () => {
    service.will("RouteStream", async function* (requests) {
      for await (const { route } of requests) {
        if (route.text === "bad") {
          yield create(RouteStreamResponseSchema, {
            requestId: route.requestId,
            result: { case: "error", value: { code: Code.InvalidArgument, message: "bad text" } },
          });
        } else yield answer(route);
      }
    });
    const stream = made().stream();
    const texts = Array.from({ length: 300 }, (_, at) => `message ${at}`);
    const results = await Promise.all(texts.map((text) => stream.route({ text })));
    assert.deepEqual(
      results.map((result) => result.text),
      texts,
    );
    const error = await thrown(stream.route({ text: "bad" }));
    assert.ok(error instanceof InvalidRequest);
    assert.match(error.message, /bad text/);
    await stream.close();
    assert.match(String(await thrown(stream.route({ text: "late" }))), /is closed/);
    assert.equal(service.received.length, 1, "one stream carried them all");
  });

  test("gives answers that come together each to its message", async () => {
    service.will("RouteStream", async function* (requests) {
      const held = [];
      for await (const { route, takesMore } of requests) {
        const refused = { code: Code.InvalidArgument, message: "bad text" };
        held.push(
          route.text === "bad"
            ? create(RouteStreamResponseSchema, {
                requestId: route.requestId,
                result: { case: "error", value: refused },
              })
            : answer(route),
        );
        const [first, ...more] = held;
        if (first === undefined || (takesMore && held.length < 6)) continue;
        first.more = more;
        yield first;
        held.length = 0;
      }
    });
    const stream = made().stream();
    const texts = ["0", "1", "2", "bad", "4", "5"];
    const settled = await Promise.allSettled(texts.map((text) => stream.route({ text })));
    assert.deepEqual(
      settled.map((each) => (each.status === "fulfilled" ? each.value.text : "refused")),
      ["0", "1", "2", "refused", "4", "5"],
    );
    const [, , , bad] = settled;
    assert.ok(bad?.status === "rejected" && bad.reason instanceof InvalidRequest);
    await stream.close();
  });

  test("sends again what was not answered, under the same ids and in order", async () => {
    const seen: string[][] = [[], []];
    service.will(
      "RouteStream",
      async function* (requests) {
        for await (const { route } of requests) {
          seen[0]?.push(route.requestId);
          if (seen[0]?.length === 3) service.breakConnections();
          if (seen[0]?.length === 1) yield answer(route);
        }
      },
      async function* (requests) {
        for await (const { route } of requests) {
          seen[1]?.push(route.requestId);
          yield answer(route);
        }
      },
    );
    const stream = made().stream();
    const first = await stream.route({ text: "1" });
    const others = await Promise.all(["2", "3"].map((text) => stream.route({ text })));
    assert.deepEqual(
      seen[1],
      others.map((result) => result.requestId),
    );
    assert.deepEqual(seen[0], [first.requestId, ...(seen[1] ?? [])]);
    await stream.close();
  });

  test("falls back, and keeps to its time", async () => {
    service.will("RouteStream", async function* (requests) {
      for await (const _ of requests) yield* [];
    });
    const client = made({ fallback: { supervisorId: "coordinator" } });
    const stream = client.stream();
    const result = await stream.route({ text: "hello" }, { timeoutMs: 100 });
    assert.equal(result.agentId, "coordinator");
    assert.ok(result.error instanceof DeadlineExceeded);
    await stream.close();
  });
});

describe("many calls at once", () => {
  const routes = async (client: Client, count: number) => {
    const counts: Record<string, number> = {};
    const one = async () => {
      try {
        return (await client.route({ text: "hello", userId: "ana" })).degraded
          ? "degraded"
          : "routed";
      } catch (error) {
        return (error as RoutingError).constructor.name;
      }
    };
    for (const came of await Promise.all(Array.from({ length: count }, one))) {
      counts[came] = (counts[came] ?? 0) + 1;
    }
    return counts;
  };

  test("have a hundred on their way, and the others wait", async () => {
    let open = 0;
    let most = 0;
    service.will("Route", async (request: RouteRequest) => {
      most = Math.max(most, ++open);
      await new Promise((resolve) => setTimeout(resolve, 5));
      open--;
      return routedTo("billing")(request);
    });
    assert.deepEqual(await routes(made({ timeoutMs: 60_000 }), 400), { routed: 400 });
    assert.ok(most <= 100, String(most));
  });

  test("are not decided here while the service answers others", async () => {
    let last = Promise.resolve();
    service.will("Route", async (request: RouteRequest) => {
      last = last.then(() => new Promise((resolve) => setTimeout(resolve, 20)));
      await last;
      return routedTo("billing")(request);
    });
    const client = made({ timeoutMs: 3_000, fallback: { supervisorId: "coordinator" } });
    const counts = await routes(client, 300);
    assert.deepEqual(Object.keys(counts).sort(), ["Overloaded", "routed"], JSON.stringify(counts));
    assert.equal(client.circuit.state, "closed");
  });

  test("are decided at once in an outage, those behind the first too", async () => {
    service.will("Route", hangs());
    const client = made({ timeoutMs: 1_000, fallback: { supervisorId: "coordinator" } });
    assert.deepEqual(await routes(client, 200), { degraded: 200 });
    assert.ok(service.requests("Route").length <= 110);
  });

  test("do not wait behind watches, which have connections of their own", async () => {
    service.will("WatchSession", async function* () {
      yield create(WatchSessionResponseSchema, {
        kind: { case: "change", value: { revision: 1n } },
      });
      await new Promise(() => undefined);
    });
    const client = made({ fallback: false });
    const watches = Array.from({ length: 150 }, () => client.watchSession({ sessionId: "chat" }));
    await Promise.all(watches.map((watch) => watch.next()));
    await client.status({ sessionId: "chat" });
    assert.equal(service.connections, 3);
    await Promise.all(watches.map((watch) => watch.return()));
  });
});

describe("pages", () => {
  test("are fetched as they are needed", async () => {
    service.will(
      "ListTurns",
      () => ({ turns: [{ requestId: "1" }, { requestId: "2" }], nextPageToken: "next" }),
      (request) => {
        assert.equal(request.pageToken, "next");
        return { turns: [{ requestId: "3" }] };
      },
    );
    const seen = [];
    for await (const turn of made().listTurns({ sessionId: "x" })) seen.push(turn.requestId);
    assert.deepEqual(seen, ["1", "2", "3"]);
  });
});

describe("outcomes", () => {
  test("are each what the contract has", async () => {
    const client = made();
    const ids = { sessionId: "x", requestId: newUuid7(), agentId: "vat" };
    const all = [
      outcomes.proceed(),
      outcomes.followUp({ timeoutMs: 90_500 }),
      outcomes.complete({ summary: "done" }),
      outcomes.handoff("vat", { context: { amount: 3 }, reason: "why" }),
      outcomes.approvalNeeded("Pay 100?"),
      outcomes.failure("no"),
    ];
    for (const outcome of all) await client.completeTurn({ ...ids, outcome });
    const sent = (service.requests("CompleteTurn") as CompleteTurnRequest[]).map((r) => r.outcome);
    assert.deepEqual(
      sent.map((each) => each.case),
      ["proceed", "followUp", "complete", "handoff", "approvalNeeded", "failure"],
    );
    assert.ok(sent[1]?.case === "followUp");
    assert.deepEqual([sent[1].value.timeout?.seconds, sent[1].value.timeout?.nanos], [90n, 5e8]);
    assert.ok(sent[3]?.case === "handoff");
    assert.deepEqual(sent[3].value.context, { amount: 3 });
  });

  test("HandoffRefused names its rules", () => {
    const violations = [{ name: "entitled", subject: "payroll", detail: "needs plan:premium" }];
    const error = new HandoffRefused("refused", { code: Code.FailedPrecondition, violations });
    assert.deepEqual(error.rules, ["entitled"]);
  });
});

describe("TLS", () => {
  let folder: string;
  before(() => {
    folder = mkdtempSync(join(tmpdir(), "agent-routing-tls-"));
    const subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"];
    const files = ["-keyout", join(folder, "key.pem"), "-out", join(folder, "cert.pem")];
    execFileSync(
      "openssl",
      ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", ...subject, ...files],
      { stdio: "ignore" },
    );
  });
  after(() => rmSync(folder, { recursive: true, force: true }));

  test("is used as configured, and an unknown authority is refused", async () => {
    const cert = readFileSync(join(folder, "cert.pem"));
    const key = readFileSync(join(folder, "key.pem"));
    const secure = new ScriptedService();
    await secure.start({ cert, key });
    try {
      secure.will("Route", routedTo("vat"));
      const tls = { ca: cert, servername: "localhost" };
      const client = made({ tls, token: () => "secret" }, secure.target);
      assert.equal((await client.route({ text: "hello" })).agentId, "vat");
      const strict = made({ tls: true, retry: { attemptsMax: 1 } }, secure.target);
      const error = await thrown(strict.route({ text: "hello" }));
      assert.ok(error instanceof RoutingError);
      assert.match(error.message, /self-signed/);
    } finally {
      for (const client of clients.splice(0)) client.close();
      await secure.stop();
    }
  });
});
