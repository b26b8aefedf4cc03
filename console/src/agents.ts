// How an agent is shown: its colour, with a letter that can be read on it, and its icon if that is a sign.

import type { Agent } from "@agent-routing/v1";

const PLAIN = "#5b6470";

/** The icon if it is a sign of its own, such as an emoji; else the name's first letter. */
export function markOf(agent: Agent): string {
  // The name of an icon, such as "cart", is for the frontends that have its picture.
  if (agent.icon !== "" && !/^[\x20-\x7e]*$/.test(agent.icon)) return agent.icon;
  return [...(agent.displayName || agent.agentId)][0]?.toLocaleUpperCase() ?? "?";
}

/** Black or white, whichever has more contrast on a colour (WCAG 2.2, relative luminance). */
export function letterColor(color: string): string {
  const given = /^#([0-9a-f]{6})$/i.exec(color)?.[1] ?? PLAIN.slice(1);
  const [red, green, blue] = [0, 2, 4].map((at) => {
    const share = Number.parseInt(given.slice(at, at + 2), 16) / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  const luminance = 0.2126 * (red ?? 0) + 0.7152 * (green ?? 0) + 0.0722 * (blue ?? 0);
  // Where the contrast with black and with white is the same.
  return luminance > 0.179 ? "#000000" : "#ffffff";
}
