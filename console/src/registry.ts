// The registry in force, and a candidate for its place: its mistakes, what it would change, taking it.

import type { RegistryAgent, ReloadAgentsResponse } from "@agent-routing/v1";
import { admin, problemOf, violationsOf } from "./calls";

/** As every registry file. */
const CANDIDATE_BYTES_MAX = 1024 * 1024;

/** Stays while other pages are shown. */
export const kept = { candidate: "" };

/** What is wrong in a candidate, and what to do. line: from 1; 0: no place, as of "and 3 more". */
export interface Mistake {
  line: number;
  message: string;
}

/** The mistakes of a candidate that was refused; none if the error is about something else. */
export function mistakesOf(error: unknown): Mistake[] {
  if (problemOf(error).reason !== "REGISTRY_INVALID") return [];
  return violationsOf(error).map(({ type = "", description }) => ({
    line: Number(/^(\d+):\d+$/.exec(type)?.[1] ?? 0),
    message: description,
  }));
}

export function isTooLarge(candidate: string | Blob): boolean {
  return new Blob([candidate]).size > CANDIDATE_BYTES_MAX;
}

/** The text of a file; undefined if it is not UTF-8, which no other text may take the place of. */
export async function textOf(file: Blob): Promise<string | undefined> {
  const bytes = await file.arrayBuffer();
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return undefined;
  }
}

export function encoded(candidate: string): Uint8Array<ArrayBuffer> {
  return new TextEncoder().encode(candidate);
}

/** Says what a candidate would change. Nothing changes. */
export function compare(candidate: string): Promise<ReloadAgentsResponse> {
  return admin.reloadAgents({
    candidate: encoded(candidate),
    validateOnly: true,
    withSessions: true,
    withAgents: true,
  });
}

/** Puts a candidate in force, if the registry with which it was compared still is. */
export function take(
  candidate: string,
  trial: ReloadAgentsResponse,
  reason: string,
): Promise<ReloadAgentsResponse> {
  return admin.reloadAgents({
    candidate: encoded(candidate),
    reason,
    expectedRegistryVersion: trial.previousRegistryVersion,
  });
}

/** To whom an agent may hand over, before and after. undefined: to all that take handoffs. */
export interface HandoffChange {
  agentId: string;
  before: string[] | undefined;
  after: string[] | undefined;
}

/** The agents of both registries whose handoffs differ. */
export function handoffChanges(before: RegistryAgent[], after: RegistryAgent[]): HandoffChange[] {
  const known = new Map(before.map((each) => [each.agent?.agentId, each]));
  return after.flatMap((each) => {
    const former = known.get(each.agent?.agentId);
    if (former === undefined) return [];
    const change = { before: listed(former), after: listed(each) };
    if (JSON.stringify(change.before) === JSON.stringify(change.after)) return [];
    return [{ agentId: each.agent?.agentId ?? "", ...change }];
  });
}

export function listed(agent: RegistryAgent): string[] | undefined {
  return agent.listsHandoffs ? agent.handoffTo : undefined;
}

/** Where a line of a text begins and ends. line: from 1. */
export function rangeOf(text: string, line: number): [number, number] {
  let start = 0;
  for (let passed = 1; passed < line; passed++) {
    const end = text.indexOf("\n", start);
    if (end < 0) break;
    start = end + 1;
  }
  const end = text.indexOf("\n", start);
  return [start, end < 0 ? text.length : end];
}
