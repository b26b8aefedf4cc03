// The icons that the example registries name, as strokes on a grid of 24.

const STROKES: Readonly<Record<string, string>> = {
  compass: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18M15.5 8.5l-2 5-5 2 2-5z",
  percent: "M18 6 6 18M7.5 5.5a2 2 0 1 0 0 4 2 2 0 0 0 0-4M16.5 14.5a2 2 0 1 0 0 4 2 2 0 0 0 0-4",
  "file-text": "M6 3h8l4 4v14H6zM14 3v4h4M9 12h6M9 16h6",
  receipt: "M6 3v18l2-1.5 2 1.5 2-1.5 2 1.5 2-1.5 2 1.5V3zM9 8h6M9 12h6",
  users:
    "M9 5a3.5 3.5 0 1 0 0 7 3.5 3.5 0 0 0 0-7M2.5 20c0-3.5 3-5.5 6.5-5.5s6.5 2 6.5 5.5M16 5.2a3.5 3.5 0 0 1 0 6.6M18 14.8c2.2.7 3.5 2.5 3.5 5.2",
  upload: "M12 15V4M7.5 8 12 3.5 16.5 8M4 15v5h16v-5",
};
const ANYBODY = "M12 4a4 4 0 1 0 0 8 4 4 0 0 0 0-8M4 20c0-4 3.6-6 8-6s8 2 8 6";

/** Returns an icon of the registry as a picture; one that is not known is a person. */
export function iconOf(name: string): SVGSVGElement {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", STROKES[name] ?? ANYBODY);
  svg.append(path);
  return svg;
}
