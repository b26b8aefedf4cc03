// Opens the console in headless Chromium, does what is asked of it, and prints what it showed as JSON.
//
//   node console_browser.mjs '{"modules": …, "chromium": …}' < lines of {"folder": …, "steps": […]}
//
// modules: the folder with the packages. folder: for screenshots. Each step is a list of a name and its
// arguments; its result, if it has one, is printed in its place. One browser takes the steps of many
// tests, each in a profile of its own.

import { existsSync } from "node:fs";
import { readFile, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";

const { modules, chromium: executablePath } = JSON.parse(process.argv[2]);
const { chromium } = createRequire(join(modules, "package.json"))("playwright-core");
const { AxeBuilder } = createRequire(join(modules, "package.json"))("@axe-core/playwright");

/** Longer than any step takes, also on a busy machine. */
const WAIT_MS_MAX = 20_000;
/** A person clicks once to press a button, to choose, and to be in a field. */
const COUNTED = ["click", "fill", "select"];
/** More than a page has links and fields before its own. */
const TABS_MAX = 30;
/** Their results say nothing. */
const SILENT = ["open", "back", "mark", "wait", "gone", "shot", "select", "slide", "meet", "hold", "release"];

const browser = await chromium.launch({
  executablePath,
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage"],
  // People's browsers keep the pages that were left, for Back.
  ignoreDefaultArgs: ["--disable-back-forward-cache"],
});

/** Takes the steps of one test in a profile of its own; returns what they showed. */
async function take({ folder, steps }) {
  // axe needs a page of its own context.
  const context = await browser.newContext({
    viewport: { width: 1200, height: 760 },
    locale: "en",
    acceptDownloads: true,
  });
  context.setDefaultTimeout(WAIT_MS_MAX);
  const seen = { mistakes: [], origins: new Set(), clicks: 0 };
  const pages = new Map();
  /** Returns the page of an operator, and its steps. Each has a tab, and so a sign-in, of its own. */
  async function pageOf(operator) {
    if (!pages.has(operator)) {
      const page = await context.newPage();
      watch(page, seen);
      pages.set(operator, { page, doing: stepsOf(page, folder, seen) });
    }
    return pages.get(operator);
  }
  let { page, doing } = await pageOf("");
  const results = [];
  for (const [name, ...given] of steps) {
    try {
      if (name === "as") {
        ({ page, doing } = await pageOf(given[0]));
        continue;
      }
      if (name === "open") seen.clicks = 0;
      if (COUNTED.includes(name)) seen.clicks++;
      const result = await doing[name](...given);
      if (!SILENT.includes(name) && result !== undefined) results.push(result);
    } catch (error) {
      const shown = plain(await page.locator("body").innerText());
      throw new Error(`${name} ${given}: ${error.message}\nthe page has: ${shown}\n${seen.mistakes}`);
    }
  }
  await context.close();
  return { results, mistakes: seen.mistakes, origins: [...seen.origins] };
}

function watch(page, seen) {
  page.on("pageerror", (error) => seen.mistakes.push(String(error)));
  page.on("console", (message) => {
    if (message.type() === "error" && !message.text().includes("Failed to load resource")) {
      seen.mistakes.push(message.text());
    }
  });
  page.on("request", (request) => {
    // What a page saves is its own.
    if (!request.url().startsWith("blob:")) seen.origins.add(new URL(request.url()).origin);
  });
}

function plain(text) {
  return text.replaceAll(/\s+/g, " ").trim();
}

function stepsOf(page, folder, seen) {
  const held = [];
  return {
    open: (url) => page.goto(url),
    // A page that the browser kept is not loaded again, so that there is no load to wait for.
    back: () => page.goBack({ waitUntil: "commit" }),
    mark: () => page.evaluate(() => void (window.isMarked = true)),
    marked: () => page.evaluate(() => window.isMarked === true),
    fill: (selector, text) => page.fill(selector, text),
    select: (selector, value) => page.selectOption(selector, value),
    click: (selector) => page.click(selector),
    press: (key) => page.keyboard.press(key),
    // By keyboard alone to the field of a name.
    tab: async (name) => {
      for (let presses = 0; presses < TABS_MAX; presses++) {
        await page.keyboard.press("Tab");
        const at = await page.evaluate(() => document.activeElement?.getAttribute("name"));
        if (at === name) return;
      }
      throw new Error(`${TABS_MAX} presses of Tab do not come to ${name}`);
    },
    wait: (selector) => page.waitForSelector(selector),
    gone: (selector) => page.waitForSelector(selector, { state: "detached" }),
    value: (selector) => page.inputValue(selector),
    text: async (selector) => (await page.locator(selector).allInnerTexts()).map(plain),
    // The text that is selected in the field that has the focus.
    selected: () =>
      page.evaluate(() => {
        const { value, selectionStart, selectionEnd } = document.activeElement;
        return value.slice(selectionStart, selectionEnd);
      }),
    focused: () => page.evaluate(() => document.activeElement?.getAttribute("name")),
    query: () => new URL(page.url()).search,
    stored: () => page.evaluate(() => [document.cookie, Object.keys(sessionStorage)]),
    size: (width, height) => page.setViewportSize({ width, height }),
    scheme: (colorScheme) => page.emulateMedia({ colorScheme }),
    wide: () => page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth),
    count: (selector) => page.locator(selector).count(),
    focus: (selector) => page.focus(selector),
    // Presses the graph's line from one agent to another where it is drawn.
    edge: async (from, to) => {
      await page.locator(".graph").scrollIntoViewIfNeeded();
      const at = await page
        .locator(`.svelte-flow__edge[data-id="${from} ${to}"] path.svelte-flow__edge-path`)
        .evaluate((path) => {
          // Not the middle: the label is there.
          const point = path.getPointAtLength(path.getTotalLength() * 0.85);
          const { x, y } = point.matrixTransform(path.getScreenCTM());
          return { x, y };
        });
      await page.mouse.click(at.x, at.y);
    },
    // Edges of the graph that leave it, or that pass behind an agent.
    hidden_edges: () =>
      page.evaluate(() => {
        const graph = document.querySelector(".graph").getBoundingClientRect();
        const nodes = [...document.querySelectorAll(".svelte-flow__node")].map((node) =>
          node.getBoundingClientRect(),
        );
        const isIn = ({ x, y }, box, px) =>
          x > box.left + px && x < box.right - px && y > box.top + px && y < box.bottom - px;
        const isHidden = (edge) => {
          const path = edge.querySelector("path.svelte-flow__edge-path");
          const length = path.getTotalLength();
          return Array.from({ length: 101 }, (_, step) =>
            path.getPointAtLength((length * step) / 100).matrixTransform(path.getScreenCTM()),
          ).some((at) => !isIn(at, graph, 0) || nodes.some((node) => isIn(at, node, 4)));
        };
        return [...document.querySelectorAll(".svelte-flow__edge")]
          .filter(isHidden)
          .map((edge) => edge.dataset.id);
      }),
    enabled: (selector) => page.locator(selector).isEnabled(),
    slide: async (selector, value) => {
      await page.locator(selector).fill(String(value));
    },
    clicks: () => seen.clicks,
    // The page's calls of a method wait until they are released: its server hears of them later.
    hold: async (method) => {
      await page.route(`**/${method}`, (route) => {
        held.push(route);
      });
    },
    release: async (method) => {
      while (held.length === 0) await page.waitForTimeout(50);
      for (const route of held.splice(0)) await route.continue();
      await page.unroute(`**/${method}`);
    },
    meet: async (name) => {
      // The test does something meanwhile, and makes the second file.
      await writeFile(join(folder, name), "");
      while (!existsSync(join(folder, `${name}.go`))) await page.waitForTimeout(50);
    },
    shot: (name) => page.screenshot({ path: join(folder, `${name}.png`) }),
    whole: async (name) => {
      await page.screenshot({ path: join(folder, `${name}.png`), fullPage: true });
    },
    upload: (selector, path) => page.setInputFiles(selector, path),
    // Clicks, and returns the content of the file that is saved.
    download: async (selector) => {
      const [saved] = await Promise.all([page.waitForEvent("download"), page.click(selector)]);
      return readFile(await saved.path(), "utf8");
    },
    axe: async () => {
      const { violations } = await new AxeBuilder({ page }).analyze();
      return violations.map((each) => `${each.id}: ${each.nodes.map((node) => node.html)}`);
    },
  };
}

// A line is {"folder", "steps"}; the answer is a line too.
for await (const line of createInterface({ input: process.stdin })) {
  const answer = await take(JSON.parse(line)).catch((error) => ({ error: String(error.message) }));
  console.log(JSON.stringify(answer));
}
await browser.close();
