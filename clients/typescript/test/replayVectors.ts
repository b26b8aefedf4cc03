// Replays the scenario vectors, tests/clients/vectors, through this client.
//
//   node build/test/replayVectors.js PYTHON [NAME…]
//   node build/test/replayVectors.js connect|grpc-web URL [NAME…]
//
// PYTHON: the interpreter that has the service, for its server; else the client for browsers plays
// what it can, without streams and without troubles of the network, at a web listener. NAME: only
// these scenarios. Prints a line for each that goes otherwise than it should, and how many were
// played.

import { type ChildProcess, spawn } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { createInterface, type Interface } from "node:readline";
import { fileURLToPath } from "node:url";
import { isDeepStrictEqual } from "node:util";
import {
  type DescMessage,
  fromJson,
  type JsonValue,
  type Message,
  type MessageShape,
  toJson,
} from "@bufbuild/protobuf";
import { durationMs } from "@bufbuild/protobuf/wkt";
import {
  type CallInfo,
  Client,
  type ClientSettings,
  newUuid7,
  RouteResult,
  type RoutingClient,
  RoutingError,
  Unavailable,
} from "../src/index.js";
import * as v1 from "../src/v1.js";
import { WebClient } from "../src/web.js";

const VECTORS = fileURLToPath(new URL("../../../../tests/clients/vectors", import.meta.url));
const VECTOR_SERVER = join(VECTORS, "..", "vector_server.py");

/** Of a step that waits for something. Nothing takes so long; what does is missing. */
const STEP_MS_MAX = 30_000;
const EVENTUALLY_PAUSE_MS = 50;

type Json = JsonValue | undefined;
type Plain = { [key: string]: JsonValue };

interface Expectation {
  answer?: JsonValue;
  error?: JsonValue;
  name?: string;
  same_as?: string;
  replayed?: boolean;
  degraded?: boolean;
  capture?: Record<string, string>;
}
interface Step extends Expectation {
  rpc?: string;
  watch?: string;
  next?: string;
  end?: string;
  stream?: string;
  network?: string;
  request?: Plain;
  messages?: (Expectation & { request: Plain })[];
  pages?: "all";
  timeout_s?: number;
  within_s?: number;
  eventually?: boolean;
  at_once?: number;
}
interface ScenarioJson {
  name: string;
  client?: {
    tenant?: string;
    supervisor_id?: string;
    fallback?: boolean;
    attempts_max?: number;
    timeout_s?: number;
  };
  steps: Step[];
}

/** A result is not what the vector says. */
class Mismatch extends Error {}

/** Holds a result against what a vector expects of it. Throws Mismatch, saying where. */
export function compare(expected: JsonValue, actual: Json, at: string): void {
  if (!isLikeHere(expected, actual, at)) {
    throw new Mismatch(
      `${at}: expected ${JSON.stringify(expected)}, got ${JSON.stringify(actual)}`,
    );
  }
}

function isLike(expected: JsonValue, actual: Json): boolean {
  try {
    compare(expected, actual, "");
    return true;
  } catch (error) {
    if (error instanceof Mismatch) return false;
    throw error;
  }
}

function isLikeHere(expected: JsonValue, actual: Json, at: string): boolean {
  if (Array.isArray(expected)) {
    const list = actual ?? [];
    if (!Array.isArray(list) || list.length !== expected.length) return false;
    expected.forEach((each, place) => {
      compare(each, list[place], `${at}.${place}`);
    });
    return true;
  }
  if (expected === null) return actual === undefined || actual === null;
  if (typeof expected !== "object") return expected === actual;
  if ("$present" in expected) return actual !== undefined && actual !== null;
  if ("$contains" in expected) {
    return typeof actual === "string" && actual.includes(String(expected.$contains));
  }
  if ("$length" in expected) {
    return (Array.isArray(actual) ? actual.length : 0) === expected.$length;
  }
  if ("$uuid" in expected) {
    return (
      typeof actual === "string" &&
      new RegExp(`^[0-9a-f]{8}-[0-9a-f]{4}-${expected.$uuid}[0-9a-f]{3}-[89ab][0-9a-f-]{16}$`).test(
        actual,
      )
    );
  }
  if ("$not" in expected) return !isDeepStrictEqual(expected.$not, actual);
  if ("$includes" in expected) {
    const parts = expected.$includes as JsonValue[];
    return (
      Array.isArray(actual) && parts.every((part) => actual.some((each) => isLike(part, each)))
    );
  }
  if (typeof actual !== "object" || actual === null || Array.isArray(actual)) return false;
  for (const [key, value] of Object.entries(expected)) compare(value, actual[key], `${at}.${key}`);
  return true;
}

/** Where scenarios are played. */
interface Place {
  client(settings: ClientSettings): RoutingClient;
  obey(word: string): Promise<void>;
  stop(): Promise<void>;
}

/** A web listener that runs already. */
class WebPlace implements Place {
  constructor(
    readonly protocol: "connect" | "grpc-web",
    readonly url: string,
  ) {}

  client(settings: ClientSettings): RoutingClient {
    return new WebClient(this.url, { ...settings, protocol: this.protocol });
  }

  async obey(word: string): Promise<void> {
    throw new Error(`a web listener does not ${word}`);
  }

  async stop(): Promise<void> {}
}

/** The running server of the vectors. */
class VectorServer implements Place {
  readonly #process: ChildProcess;
  readonly #lines: AsyncIterator<string>;
  readonly #reader: Interface;
  address = "";

  constructor(python: string) {
    this.#process = spawn(python, [VECTOR_SERVER], { stdio: ["pipe", "pipe", "inherit"] });
    if (this.#process.stdout === null) throw new Error("the vector server has no output");
    this.#reader = createInterface({ input: this.#process.stdout });
    this.#lines = this.#reader[Symbol.asyncIterator]();
  }

  async start(): Promise<void> {
    this.address = JSON.parse(await this.#line()).address;
  }

  client(settings: ClientSettings): RoutingClient {
    return new Client(this.address, settings);
  }

  /** Makes the server change its connections, and waits until that has happened. */
  async obey(word: string): Promise<void> {
    this.#process.stdin?.write(`${word}\n`);
    const said = await this.#line();
    if (said !== `ok ${word}`) throw new Error(`the vector server says ${said} to ${word}`);
  }

  async stop(): Promise<void> {
    const ended = new Promise((resolve) => this.#process.once("exit", resolve));
    this.#process.stdin?.end();
    await ended;
    this.#reader.close();
  }

  async #line(): Promise<string> {
    const { value, done } = await within(STEP_MS_MAX, this.#lines.next());
    if (done) throw new Error("the vector server has ended");
    return value;
  }
}

async function within<T>(ms: number, promise: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Mismatch(`nothing came within ${ms / 1000} s`)), ms);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

const REQUESTS = {
  Route: v1.RouteRequestSchema,
  SetActiveAgent: v1.SetActiveAgentRequestSchema,
  CancelTask: v1.CancelTaskRequestSchema,
  ClearActiveAgent: v1.ClearActiveAgentRequestSchema,
  Status: v1.StatusRequestSchema,
  CompleteTurn: v1.CompleteTurnRequestSchema,
  ResumeTask: v1.ResumeTaskRequestSchema,
  ReportDegraded: v1.ReportDegradedRequestSchema,
  ListTasks: v1.ListTasksRequestSchema,
  ListTurns: v1.ListTurnsRequestSchema,
  ListAgents: v1.ListAgentsRequestSchema,
  ListWaiting: v1.ListWaitingRequestSchema,
  ClaimTurn: v1.ClaimTurnRequestSchema,
  ReleaseTurn: v1.ReleaseTurnRequestSchema,
  KeepTurn: v1.KeepTurnRequestSchema,
  AddNote: v1.AddNoteRequestSchema,
  ListNotes: v1.ListNotesRequestSchema,
};
const SCHEMAS = new Map<string, DescMessage>(
  [
    v1.SetActiveAgentResponseSchema,
    v1.CancelTaskResponseSchema,
    v1.ClearActiveAgentResponseSchema,
    v1.StatusResponseSchema,
    v1.CompleteTurnResponseSchema,
    v1.ResumeTaskResponseSchema,
    v1.ReportDegradedResponseSchema,
    v1.ListTasksResponseSchema,
    v1.ListTurnsResponseSchema,
    v1.ListAgentsResponseSchema,
    v1.ListWaitingResponseSchema,
    v1.ClaimTurnResponseSchema,
    v1.ReleaseTurnResponseSchema,
    v1.KeepTurnResponseSchema,
    v1.AddNoteResponseSchema,
    v1.ListNotesResponseSchema,
    v1.WaitingConversationSchema,
    v1.RouteResponseSchema,
    v1.ChangeSchema,
    v1.TaskSchema,
    v1.TurnSchema,
  ].map((schema) => [schema.typeName, schema]),
);

/** Returns a message as vectors have it: proto3 JSON with the contract's field names. */
function plain(message: Message): JsonValue {
  const schema = SCHEMAS.get(message.$typeName);
  if (schema === undefined) throw new Error(`no schema of ${message.$typeName}`);
  return toJson(schema, message, { useProtoFieldName: true });
}

/** One scenario on its way: its client, and what it has seen. */
class Scenario {
  readonly #variables = new Map<string, string>();
  readonly #answers = new Map<string, JsonValue>();
  readonly #watches = new Map<string, AsyncGenerator<v1.Change, void, void>>();
  readonly #streams = new Map<string, ReturnType<RoutingClient["stream"]>>();
  readonly #client: RoutingClient;

  constructor(
    readonly place: Place,
    given: NonNullable<ScenarioJson["client"]>,
  ) {
    this.#client = place.client({
      tenant: given.tenant ?? "",
      timeoutMs: (given.timeout_s ?? 30) * 1000,
      retry: { attemptsMax: given.attempts_max ?? 4 },
      fallback: given.fallback === false ? false : { supervisorId: given.supervisor_id ?? "" },
    });
  }

  /** Takes one step, and holds its result against what it expects. */
  async step(step: Step): Promise<void> {
    if (step.network !== undefined) await this.place.obey(step.network);
    else if (step.watch !== undefined) {
      const request = this.#request(v1.WatchSessionRequestSchema, step.request);
      const { sessionId, userId, afterRevision, heartbeatInterval } = request;
      const fields = {
        sessionId,
        userId,
        ...(afterRevision === undefined ? {} : { afterRevision }),
        ...(heartbeatInterval && { heartbeatIntervalMs: durationMs(heartbeatInterval) }),
      };
      this.#watches.set(step.watch, this.#client.watchSession(fields));
    } else if (step.next !== undefined) {
      const watch = this.#watches.get(step.next);
      if (watch === undefined) throw new Error(`no watch ${step.next}`);
      await this.#check(
        step,
        within(STEP_MS_MAX, watch.next()).then(({ value }) => {
          if (!value) throw new Mismatch("the watch has ended");
          return value;
        }),
      );
    } else if (step.end !== undefined) {
      await this.#watches.get(step.end)?.return();
      this.#watches.delete(step.end);
    } else if (step.stream !== undefined) await this.#stream(step.stream, step.messages ?? []);
    else if (step.eventually) await this.#eventually(step);
    else if (step.at_once !== undefined) {
      const calls = Array.from({ length: step.at_once }, () => this.#call(step));
      await Promise.allSettled(calls);
      for (const call of calls) await this.#check(step, call);
    } else await this.#check(step, this.#call(step));
  }

  async close(): Promise<void> {
    for (const watch of this.#watches.values()) await watch.return();
    for (const stream of this.#streams.values()) await stream.close();
    this.#client.close();
  }

  /** Returns a part of a vector with its variables filled in. */
  #filled<T extends JsonValue>(value: T): T {
    const fill = (each: JsonValue): JsonValue => {
      if (typeof each === "string") {
        return each.replaceAll(/\$\{([^}]+)\}/g, (_, name) => this.#variable(name));
      }
      if (Array.isArray(each)) return each.map(fill);
      if (typeof each !== "object" || each === null) return each;
      return Object.fromEntries(Object.entries(each).map(([key, inner]) => [key, fill(inner)]));
    };
    return fill(value) as T;
  }

  #variable(name: string): string {
    const known = this.#variables.get(name);
    if (known !== undefined) return known;
    const [kind, rest = ""] = name.split(":");
    let made: string;
    if (kind === "uuid") made = newUuid7();
    else if (kind === "id") made = `vector-${newUuid7()}`;
    else if (kind === "x") made = "x".repeat(Number(rest));
    else throw new Error(`nothing has captured \${${name}}`);
    this.#variables.set(name, made);
    return made;
  }

  #request<Desc extends DescMessage>(schema: Desc, request: Plain = {}): MessageShape<Desc> {
    return fromJson(schema, this.#filled(request));
  }

  async #call(step: Step): Promise<Message | RouteResult | JsonValue> {
    const { rpc, request: given } = step;
    const info: CallInfo = {};
    const options = {
      info,
      ...(step.timeout_s === undefined ? {} : { timeoutMs: step.timeout_s * 1000 }),
    };
    if (step.pages === "all") {
      const all: JsonValue[] = [];
      const { name, entries } = this.#pages(rpc ?? "", given);
      for await (const each of entries) all.push(plain(each));
      return { [name]: all };
    }
    const begunMs = performance.now();
    const answer = await this.#send(rpc ?? "", given, options);
    const seconds = (performance.now() - begunMs) / 1000;
    if (seconds > (step.within_s ?? Number.POSITIVE_INFINITY)) {
      throw new Mismatch(`took ${seconds} s, expected at most ${step.within_s} s`);
    }
    const isDegraded = answer instanceof RouteResult && answer.degraded;
    const replayed = step.replayed ?? false;
    if (info.replayed !== replayed && !isDegraded) {
      throw new Mismatch(`replayed: expected ${replayed}, got ${info.replayed}`);
    }
    return answer;
  }

  #pages(
    rpc: string,
    given: Plain | undefined,
  ): { name: string; entries: AsyncIterable<v1.Task | v1.Turn | v1.WaitingConversation> } {
    const client = this.#client;
    switch (rpc) {
      case "ListTasks":
        return {
          name: "tasks",
          entries: client.listTasks(this.#request(REQUESTS.ListTasks, given)),
        };
      case "ListWaiting":
        return {
          name: "entries",
          entries: client.listWaiting(this.#request(REQUESTS.ListWaiting, given)),
        };
      default:
        return {
          name: "turns",
          entries: client.listTurns(this.#request(REQUESTS.ListTurns, given)),
        };
    }
  }

  async #send(
    rpc: string,
    given: Plain | undefined,
    options: { info: CallInfo; timeoutMs?: number },
  ): Promise<Message | RouteResult> {
    const client = this.#client;
    switch (rpc) {
      case "Route":
        return await client.route(this.#request(REQUESTS.Route, given), options);
      case "SetActiveAgent":
        return await client.setActiveAgent(this.#request(REQUESTS.SetActiveAgent, given), options);
      case "CancelTask":
        return await client.cancelTask(this.#request(REQUESTS.CancelTask, given), options);
      case "ClearActiveAgent":
        return await client.clearActiveAgent(
          this.#request(REQUESTS.ClearActiveAgent, given),
          options,
        );
      case "Status":
        return await client.status(this.#request(REQUESTS.Status, given), options);
      case "CompleteTurn":
        return await client.completeTurn(this.#request(REQUESTS.CompleteTurn, given), options);
      case "ResumeTask":
        return await client.resumeTask(this.#request(REQUESTS.ResumeTask, given), options);
      case "ReportDegraded":
        return await client.reportDegraded(this.#request(REQUESTS.ReportDegraded, given), options);
      case "ListTasks":
        return await client.listTasksPage(this.#request(REQUESTS.ListTasks, given), options);
      case "ListTurns":
        return await client.listTurnsPage(this.#request(REQUESTS.ListTurns, given), options);
      case "ListAgents":
        return await client.listAgents(this.#request(REQUESTS.ListAgents, given), options);
      case "ListWaiting":
        return await client.listWaitingPage(this.#request(REQUESTS.ListWaiting, given), options);
      case "ClaimTurn":
        return await client.claimTurn(this.#request(REQUESTS.ClaimTurn, given), options);
      case "ReleaseTurn":
        return await client.releaseTurn(this.#request(REQUESTS.ReleaseTurn, given), options);
      case "KeepTurn": {
        const { say: text, ...others } = this.#request(REQUESTS.KeepTurn, given);
        return await client.say({ ...others, text }, options);
      }
      case "AddNote":
        return await client.addNote(this.#request(REQUESTS.AddNote, given), options);
      case "ListNotes":
        return await client.listNotes(this.#request(REQUESTS.ListNotes, given), options);
      default:
        throw new Error(`no such rpc: ${rpc}`);
    }
  }

  /** Calls until the service is back: a client needs a moment to find that out. */
  async #eventually(step: Step): Promise<void> {
    const until = performance.now() + STEP_MS_MAX;
    for (;;) {
      const coming = this.#call(step);
      const isAway = await coming.then(
        (answer) => answer instanceof RouteResult && answer.degraded,
        (error) => error instanceof Unavailable,
      );
      if (!isAway || performance.now() > until) return await this.#check(step, coming);
      await new Promise((resolve) => setTimeout(resolve, EVENTUALLY_PAUSE_MS));
    }
  }

  async #stream(name: string, messages: NonNullable<Step["messages"]>): Promise<void> {
    const stream = this.#streams.get(name) ?? this.#client.stream();
    this.#streams.set(name, stream);
    const answers = messages.map((each) =>
      stream.route(this.#request(REQUESTS.Route, each.request)),
    );
    await within(STEP_MS_MAX, Promise.allSettled(answers));
    for (const [place, each] of messages.entries()) {
      await this.#check(each, answers[place] as Promise<RouteResult>);
    }
  }

  /** Awaits a result, and holds it against what the step expects. */
  async #check(
    expected: Expectation,
    coming: Promise<Message | RouteResult | JsonValue>,
  ): Promise<void> {
    let result: Message | RouteResult | JsonValue;
    try {
      result = await coming;
    } catch (error) {
      if (!(error instanceof RoutingError)) throw error;
      if (expected.error === undefined) {
        throw new Mismatch(`failed with ${error.codeName} ${error.reason}: ${error.message}`);
      }
      compare(this.#filled(expected.error), errorAsJson(error), "error");
      return;
    }
    if (result instanceof RouteResult) {
      compare(expected.degraded ?? false, result.degraded, "degraded");
      result = result.response;
    }
    const answer = isMessage(result) ? plain(result) : result;
    if (expected.answer === undefined) {
      throw new Mismatch(
        `expected ${JSON.stringify(expected.error)}, got the answer ${JSON.stringify(answer)}`,
      );
    }
    compare(this.#filled(expected.answer), answer, "answer");
    if (expected.same_as !== undefined) {
      const first = this.#answers.get(expected.same_as);
      if (!isDeepStrictEqual(answer, first)) {
        throw new Mismatch(
          `not the first answer ${JSON.stringify(first)} but ${JSON.stringify(answer)}`,
        );
      }
    }
    this.#answers.set(expected.name ?? "", answer);
    for (const [variable, path] of Object.entries(expected.capture ?? {})) {
      this.#variables.set(variable, atPath(answer, path));
    }
  }
}

function isMessage(value: Message | JsonValue): value is Message {
  return typeof value === "object" && value !== null && "$typeName" in value;
}

/** Returns the text at a path such as "open_requests.0.request_id". */
function atPath(answer: JsonValue, path: string): string {
  let at: Json = answer;
  for (const part of path.split(".")) {
    at = (at as Record<string, JsonValue> | undefined)?.[part];
  }
  if (typeof at !== "string") throw new Mismatch(`${path} is ${JSON.stringify(at)}, no text`);
  return at;
}

function errorAsJson(error: RoutingError): JsonValue {
  return {
    code: error.codeName,
    reason: error.reason,
    message: error.message,
    metadata: { ...error.metadata },
    request_id: error.requestId,
    session_id: error.sessionId,
    violations: error.violations.map((each) => ({ ...each })),
  };
}

/** Plays a scenario. Throws Mismatch, with the number of the step, where it goes otherwise. */
async function play(place: Place, scenario: ScenarioJson): Promise<void> {
  const playing = new Scenario(place, scenario.client ?? {});
  try {
    for (const [number, step] of scenario.steps.entries()) {
      try {
        await playing.step(step);
      } catch (error) {
        if (!(error instanceof Mismatch)) throw error;
        throw new Mismatch(
          `step ${number}, ${JSON.stringify(step).slice(0, 200)}: ${error.message}`,
        );
      }
    }
  } finally {
    await playing.close();
  }
}

/** Tells whether a browser can play a scenario: without streams, and with a network that holds. */
function isForBrowsers({ steps }: ScenarioJson): boolean {
  return !steps.some((step) => step.stream !== undefined || step.network !== undefined);
}

async function placeOf(args: string[]): Promise<{ place: Place; names: string[] }> {
  const [first, second, ...others] = args;
  if (first === "connect" || first === "grpc-web") {
    if (second === undefined) throw new Error(`usage: replayVectors.js ${first} URL [NAME…]`);
    return { place: new WebPlace(first, second), names: others };
  }
  if (first === undefined) throw new Error("usage: replayVectors.js PYTHON [NAME…]");
  const server = new VectorServer(first);
  await server.start();
  return { place: server, names: args.slice(1) };
}

async function main(args: string[]): Promise<number> {
  const { place, names } = await placeOf(args);
  let played = 0;
  let failed = 0;
  try {
    for (const file of readdirSync(VECTORS).sort()) {
      if (!file.endsWith(".json") || file === "schema.json") continue;
      const { scenarios } = JSON.parse(readFileSync(join(VECTORS, file), "utf8"));
      for (const scenario of scenarios as ScenarioJson[]) {
        if (names.length > 0 && !names.includes(scenario.name)) continue;
        if (place instanceof WebPlace && !isForBrowsers(scenario)) continue;
        played++;
        try {
          await play(place, scenario);
        } catch (error) {
          failed++;
          const words = error instanceof Mismatch ? error.message : (error as Error).stack;
          console.log(`${basename(file, ".json")}/${scenario.name}: ${words}`);
        }
      }
    }
  } finally {
    await place.stop();
  }
  console.log(`${played} scenarios played, ${failed} otherwise than they should`);
  return failed > 0 || played === 0 ? 1 : 0;
}

process.exitCode = await main(process.argv.slice(2));
