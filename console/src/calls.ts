// The page's calls, over Connect, and what it shows of their errors.

import { AdminService, type Agent, RoutingService } from "@agent-routing/v1";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-web";
import { token } from "./signIn";

const transport = createConnectTransport({
  baseUrl: location.origin,
  useBinaryFormat: true,
  interceptors: [
    (next) => (request) => {
      const bearer = token();
      if (bearer) request.header.set("authorization", `Bearer ${bearer}`);
      return next(request);
    },
  ],
});

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

export function problemOf(error: unknown): Problem {
  const failed = ConnectError.from(error);
  let reason = Code[failed.code] ?? "";
  for (const detail of failed.details) {
    if ("debug" in detail && detail.type === "google.rpc.ErrorInfo") {
      const debug = detail.debug as { reason?: unknown } | undefined;
      if (typeof debug?.reason === "string") reason = debug.reason;
    }
  }
  const needsSignIn = failed.code === Code.Unauthenticated;
  return { reason, message: failed.rawMessage, needsSignIn };
}
