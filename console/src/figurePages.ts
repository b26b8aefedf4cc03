// The pages, by the view that the URL names. Each is loaded when it is opened: the first one, of
// sessions, is a part of the page itself.

const FIGURE_PAGES = {
  overview: () => import("./Overview.svelte"),
  handoffs: () => import("./Handoffs.svelte"),
  topics: () => import("./Topics.svelte"),
  audit: () => import("./Audit.svelte"),
};
export type FigurePage = keyof typeof FIGURE_PAGES;
export const FIGURE_VIEWS = Object.keys(FIGURE_PAGES) as FigurePage[];

export function figurePageOf(view: string): FigurePage | undefined {
  return FIGURE_VIEWS.find((each) => each === view);
}

// The same promise each time, so that a page that is shown again is there at once.
const loaded = new Map<FigurePage, ReturnType<(typeof FIGURE_PAGES)[FigurePage]>>();

export function loadFigures(page: FigurePage) {
  const found = loaded.get(page) ?? FIGURE_PAGES[page]();
  loaded.set(page, found);
  // A failed one is tried again.
  found.catch(() => loaded.delete(page));
  return found;
}

export const loadSession = () => import("./Session.svelte");
export const loadApprovals = () => import("./Approvals.svelte");
export const loadDesk = () => import("./Desk.svelte");
export const loadRegistry = () => import("./Registry.svelte");
export const loadOperations = () => import("./Operations.svelte");
