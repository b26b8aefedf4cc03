// The pages of figures, by the view that the URL names.

import Audit from "./Audit.svelte";
import Handoffs from "./Handoffs.svelte";
import Overview from "./Overview.svelte";
import Topics from "./Topics.svelte";

export const FIGURE_PAGES = {
  overview: Overview,
  handoffs: Handoffs,
  topics: Topics,
  audit: Audit,
};
export type FigurePage = keyof typeof FIGURE_PAGES;
export const FIGURE_VIEWS = Object.keys(FIGURE_PAGES) as FigurePage[];

export function figurePageOf(view: string): FigurePage | undefined {
  return FIGURE_VIEWS.find((each) => each === view);
}
