// Acts on the whole service. Each is tried first, and done only if the server still finds what the trial
// has shown.

import {
  ExportUserResponseSchema,
  type GetStickinessResponse,
  type ReloadAgentsResponse,
} from "@agent-routing/v1";
import { toJsonString } from "@bufbuild/protobuf";
import { timestampDate, timestampFromDate } from "@bufbuild/protobuf/wkt";
import { admin } from "./calls";
import type { OperationsTexts } from "./operationsTexts";

export const OPERATIONS = ["stickiness", "reload", "export", "erase", "purge"] as const;
export type Operation = (typeof OPERATIONS)[number];

/** An operation as the form has it. Each reads its own fields. */
export interface Wanted {
  operation: Operation;
  enabled: boolean;
  agentIds: string;
  percent: number;
  fresh: boolean;
  userId: string;
  before: string;
}

/** What is said of an effect, in the language that is chosen when it is shown. */
export type Lines = (texts: OperationsTexts) => string[];

/** What the server has to find when it is done; otherwise it refuses (STATE_CHANGED). */
interface Expected {
  expectedStateVersion?: string;
  expectedRegistryVersion?: string;
  expectedFileVersion?: string;
  expectedSessions?: bigint;
  expectedTurns?: bigint;
}

/** What an operation would do. */
export interface Effect {
  lines: Lines;
  expected: Expected;
  /** Whether there is something to do. */
  isUseful: boolean;
}

/** What has to be typed to confirm; "" for what can be undone. */
export function toConfirm(wanted: Wanted): string {
  if (wanted.operation === "erase") return wanted.userId;
  return wanted.operation === "purge" ? "purge" : "";
}

/** Whether the form says enough to be tried. */
export function isWhole(wanted: Wanted): boolean {
  if (wanted.operation === "purge") return wanted.before !== "";
  if (wanted.operation === "erase" || wanted.operation === "export") return wanted.userId !== "";
  return true;
}

export function stickiness(): Promise<GetStickinessResponse> {
  return admin.getStickiness({});
}

export function shownTime(of: GetStickinessResponse, language: string): string {
  if (of.switchTime === undefined) return "";
  return timestampDate(of.switchTime).toLocaleString(language);
}

/** Says what an operation would do. Nothing changes. */
export async function attempt(wanted: Wanted): Promise<Effect> {
  switch (wanted.operation) {
    case "stickiness": {
      const now = await stickiness();
      const expected = { expectedStateVersion: now.stateVersion };
      const trial = await admin.setStickiness({ ...switchOf(wanted, "", true), ...expected });
      const isUseful = trial.updateTime !== undefined;
      return {
        lines: (texts) => [
          switched(trial.previouslyEnabled, wanted.enabled, texts),
          ...(isUseful ? [] : [texts.nothing]),
        ],
        expected,
        isUseful,
      };
    }
    case "reload": {
      const answer = await admin.reloadAgents({
        validateOnly: true,
        withSessions: true,
      });
      return {
        lines: (texts) => reloaded(answer, texts),
        // Live sessions come and go; the registries are what two operators could differ in.
        expected: {
          expectedRegistryVersion: answer.previousRegistryVersion,
          expectedFileVersion: answer.registryVersion,
        },
        isUseful: true,
      };
    }
    case "export":
    case "erase": {
      const answer = await admin.eraseUser({ userId: wanted.userId, validateOnly: true });
      const counts = [Number(answer.sessionsErased), Number(answer.turnsErased)] as const;
      return {
        lines: (texts) => [texts.users(...counts)],
        expected: { expectedSessions: answer.sessionsErased, expectedTurns: answer.turnsErased },
        isUseful: true,
      };
    }
    case "purge": {
      const answer = await admin.purgeSessions({ ...purgeOf(wanted), validateOnly: true });
      const counts = [Number(answer.sessionsPurged), answer.more] as const;
      return {
        lines: (texts) => [texts.sessions(...counts)],
        expected: { expectedSessions: answer.sessionsPurged },
        isUseful: counts[0] > 0,
      };
    }
  }
}

/** Does it, for a reason, if the server still finds what was tried. */
export async function carryOut(
  wanted: Wanted,
  { expected }: Effect,
  reason: string,
): Promise<Lines> {
  switch (wanted.operation) {
    case "stickiness": {
      const answer = await admin.setStickiness({
        ...switchOf(wanted, reason, false),
        ...expected,
      });
      return (texts) => [switched(answer.previouslyEnabled, answer.enabled, texts)];
    }
    case "reload": {
      const answer = await admin.reloadAgents({ reason, ...expected });
      return (texts) => reloaded(answer, texts);
    }
    case "export": {
      const count = await download(wanted.userId, reason);
      return (texts) => [texts.parts(count)];
    }
    case "erase": {
      const answer = await admin.eraseUser({ userId: wanted.userId, reason, ...expected });
      const counts = [Number(answer.sessionsErased), Number(answer.turnsErased)] as const;
      return (texts) => [texts.users(...counts)];
    }
    case "purge": {
      const answer = await admin.purgeSessions({ ...purgeOf(wanted), reason, ...expected });
      return (texts) => [texts.sessions(Number(answer.sessionsPurged), answer.more)];
    }
  }
}

function switched(from: boolean, to: boolean, texts: OperationsTexts): string {
  return `${from ? texts.on : texts.off} → ${to ? texts.on : texts.off}`;
}

function switchOf(wanted: Wanted, reason: string, validateOnly: boolean) {
  const agentIds = wanted.agentIds.split(",").map((each) => each.trim());
  return {
    enabled: wanted.enabled,
    reason,
    validateOnly,
    fresh: wanted.enabled && wanted.fresh,
    agentIds: wanted.enabled ? [] : agentIds.filter((each) => each !== ""),
    usersPercent: wanted.enabled ? 0 : wanted.percent || 0,
  };
}

function purgeOf(wanted: Wanted) {
  return { updateTimeBefore: timestampFromDate(new Date(wanted.before)) };
}

/** What a registry changes, line by line. */
export function reloaded(answer: ReloadAgentsResponse, texts: OperationsTexts): string[] {
  const lists: [string, string[]][] = [
    [texts.added, answer.addedAgentIds],
    [texts.removed, answer.removedAgentIds],
    [texts.changed, answer.changedAgentIds],
    [texts.settings, answer.changedSettings],
  ];
  const lines = lists
    .filter(([, names]) => names.length > 0)
    .map(([what, names]) => `${what}: ${names.join(", ")}`);
  if (lines.length === 0) lines.push(texts.nothing);
  const versions = `${answer.previousRegistryVersion} → ${answer.registryVersion}`;
  const touched = answer.touched.map((each) =>
    texts.touched(each.agentId, Number(each.active), Number(each.interrupted + each.answering)),
  );
  const isPartial = answer.sessionsRead > 0n && !answer.allSessionsRead;
  return [
    `${texts.version} ${versions}`,
    ...lines,
    ...touched,
    ...(isPartial ? [texts.partly(Number(answer.sessionsRead))] : []),
  ];
}

/** Saves all of a user's data as a file; returns how many records. */
async function download(userId: string, reason: string): Promise<number> {
  const lines: string[] = [];
  for await (const part of admin.exportUser({ userId, reason })) {
    lines.push(`${toJsonString(ExportUserResponseSchema, part)}\n`);
  }
  // Only a whole export gets here: an error ends the loop by throwing.
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(lines, { type: "application/jsonl" }));
  link.download = "export.jsonl";
  link.click();
  URL.revokeObjectURL(link.href);
  return lines.length;
}
