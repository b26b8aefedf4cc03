// The page's calls, over Connect, and what it shows of their errors.

import { AdminService, type Agent, RoutingService } from "@agent-routing/v1";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-web";
import { token } from "./signIn";

const transport = createConnectTransport({
  baseUrl: location.origin,
  useBinaryFormat: true,
  interceptors: [
    (next) => async (request) => {
      const bearer = token();
      if (bearer) request.header.set("authorization", `Bearer ${bearer}`);
      const answer = await next(request);
      if (!request.stream) compareClocks(answer.header.get("date"));
      return answer;
    },
  ],
});

/** The server's clock less the browser's; undefined: not known yet. */
let aheadMs: number | undefined;

function compareClocks(date: string | null): void {
  const serverMs = Date.parse(date ?? "");
  // The header has whole seconds: half of one is the best guess.
  if (!Number.isNaN(serverMs)) aheadMs = serverMs + 500 - Date.now();
}

/** The time by the server's clock, to about a second. */
export function serverNowMs(): number {
  return Date.now() + (aheadMs ?? 0);
}

export const admin = createClient(AdminService, transport);
export const routing = createClient(RoutingService, transport);

/** The agents, to show their names; none where they cannot be listed: then their ids are shown. */
export function agentsToName(signal: AbortSignal): Promise<Agent[]> {
  return routing.listAgents({}, { signal }).then(
    (answer) => answer.agents,
    () => [],
  );
}

/** What a person reads of an error: the reason of the contract, and the message with its remedy. */
export interface Problem {
  reason: string;
  message: string;
  needsSignIn: boolean;
}

/** Whether nothing was done because someone else was faster. */
export function hasChanged(error: unknown): boolean {
  return ConnectError.from(error).code === Code.Aborted;
}

export function problemOf(error: unknown): Problem {
  const failed = ConnectError.from(error);
  const [debug] = detailsOf<{ reason?: unknown }>(failed, "ErrorInfo");
  const reason = typeof debug?.reason === "string" ? debug.reason : (Code[failed.code] ?? "");
  const needsSignIn = failed.code === Code.Unauthenticated;
  return { reason, message: failed.rawMessage, needsSignIn };
}

/** One of the reasons for a refusal. type: the rule, or the place in a file. */
export interface Violation {
  type?: string;
  description: string;
}

/** All reasons why the state of the server, or a file, refuses a call. */
export function violationsOf(error: unknown): Violation[] {
  type Failure = { violations?: Violation[] };
  const details = detailsOf<Failure>(ConnectError.from(error), "PreconditionFailure");
  return details.flatMap((each) => each.violations ?? []);
}

/** The readable form of an error's details of a type of google.rpc. */
function detailsOf<Shown>(failed: ConnectError, type: string): Shown[] {
  return failed.details.flatMap((each) =>
    "debug" in each && each.type === `google.rpc.${type}` && each.debug
      ? [each.debug as Shown]
      : [],
  );
}
