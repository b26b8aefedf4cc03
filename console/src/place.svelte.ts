// Which page the URL names. Links stay links: they can be copied, and opened in another tab.

export const place = $state({ query: location.search });

/** Goes to a page of the console. href: a query, such as "?view=approvals"; "/": the sessions. */
export function go(href: string): void {
  history.pushState(null, "", href || "/");
  place.query = location.search;
}

/** Changes the query of the page without a step for Back, as for each step of a slider. */
export function amend(href: string): void {
  history.replaceState(null, "", href || "/");
  place.query = location.search;
}

/** Follows a link inside the console without loading the page again. */
export function followLink(event: MouseEvent): void {
  const link = (event.target as Element).closest?.("a[href]");
  if (!(link instanceof HTMLAnchorElement) || link.origin !== location.origin) return;
  if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
  event.preventDefault();
  go(`${link.pathname}${link.search}`);
}

export function sessionLink(sessionId: string, at = 0): string {
  const query = new URLSearchParams({ view: "session", id: sessionId });
  if (at > 0) query.set("at", String(at));
  return `/?${query}`;
}
