// What a person at the desk has typed and not sent, by conversation. It is gone when the page is loaded again.

export interface Draft {
  text: string;
  note: string;
}

const drafts = new Map<string, Draft>();

export function draftOf(agentId: string, sessionId: string): Draft {
  return drafts.get(JSON.stringify([agentId, sessionId])) ?? { text: "", note: "" };
}

export function keepDraft(agentId: string, sessionId: string, draft: Draft): void {
  const key = JSON.stringify([agentId, sessionId]);
  if (draft.text === "" && draft.note === "") drafts.delete(key);
  else drafts.set(key, draft);
}

/** After a sign-out: the next person at this page must not find them. */
export function forgetDrafts(): void {
  drafts.clear();
}
