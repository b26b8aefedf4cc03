// A browser's page that is left and kept for Back: with its streams, and a browser opens six
// connections to a server, so that after five pages of one tab no call would go out.

/** A browser's window; other runtimes have no such events. */
const page = globalThis as Partial<Pick<Window, "addEventListener" | "removeEventListener">>;

let isLeft = false;
page.addEventListener?.("pagehide", () => {
  isLeft = true;
});
page.addEventListener?.("pageshow", () => {
  isLeft = false;
});

/** Calls a function when the page is left. Returns what takes that back. */
export function whenLeft(stop: () => void): () => void {
  page.addEventListener?.("pagehide", stop);
  return () => page.removeEventListener?.("pagehide", stop);
}

/** Waits until a page that was left is back; returns whether it was left. */
export async function backAgain(): Promise<boolean> {
  if (!isLeft) return false;
  await new Promise((resolve) => page.addEventListener?.("pageshow", resolve, { once: true }));
  return true;
}
