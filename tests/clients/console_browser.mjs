// Opens the console in headless Chromium, does what is asked of it, and prints what it showed as JSON.
//
//   node console_browser.mjs '{"modules": …, "chromium": …, "folder": …, "steps": […]}'
//
// modules: the folder with the packages. folder: for the browser's own files and for screenshots. Each
// step is a list of a name and its arguments; its result, if it has one, is printed in its place.

import { existsSync } from "node:fs";
import { readFile, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";

const { modules, chromium: executablePath, folder, steps } = JSON.parse(process.argv[2]);
const { chromium } = createRequire(join(modules, "package.json"))("playwright-core");
const { AxeBuilder } = createRequire(join(modules, "package.json"))("@axe-core/playwright");

/** Longer than any step takes, also on a busy machine. */
const WAIT_MS_MAX = 60_000;

const browser = await chromium.launch({
  executablePath,
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage"],
});
// axe needs a page of its own context.
const context = await browser.newContext({ viewport: { width: 1200, height: 760 }, locale: "en" });
context.setDefaultTimeout(WAIT_MS_MAX);
const page = await context.newPage();
const mistakes = [];
const requests = [];
page.on("pageerror", (error) => mistakes.push(String(error)));
page.on("console", (message) => {
  if (message.type() === "error" && !message.text().includes("Failed to load resource")) {
    mistakes.push(message.text());
  }
});
page.on("request", (request) => requests.push(new URL(request.url()).origin));

const doing = {
  open: (url) => page.goto(url),
  back: () => page.goBack(),
  fill: (selector, text) => page.fill(selector, text),
  select: (selector, value) => page.selectOption(selector, value),
  click: (selector) => page.click(selector),
  press: (key) => page.keyboard.press(key),
  wait: (selector) => page.waitForSelector(selector),
  gone: (selector) => page.waitForSelector(selector, { state: "detached" }),
  value: (selector) => page.inputValue(selector),
  text: async (selector) => (await page.locator(selector).allInnerTexts()).map(plain),
  focused: () => page.evaluate(() => document.activeElement?.getAttribute("name")),
  query: () => new URL(page.url()).search,
  stored: () => page.evaluate(() => [document.cookie, Object.keys(sessionStorage)]),
  size: (width, height) => page.setViewportSize({ width, height }),
  scheme: (colorScheme) => page.emulateMedia({ colorScheme }),
  wide: () => page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth),
  enabled: (selector) => page.locator(selector).isEnabled(),
  slide: async (selector, value) => {
    await page.locator(selector).fill(String(value));
  },
  clicks: () => clicks,
  meet: async (name) => {
    // The test does something meanwhile, and makes the second file.
    await writeFile(join(folder, name), "");
    while (!existsSync(join(folder, `${name}.go`))) await page.waitForTimeout(50);
  },
  upload: (selector, path) => page.setInputFiles(selector, path),
  // Clicks, and returns the content of the file that is saved.
  download: async (selector) => {
    const [saved] = await Promise.all([page.waitForEvent("download"), page.click(selector)]);
    return readFile(await saved.path(), "utf8");
  },
  shot: (name) => page.screenshot({ path: join(folder, `${name}.png`) }),
  axe: async () => {
    const { violations } = await new AxeBuilder({ page }).analyze();
    return violations.map((each) => `${each.id}: ${each.nodes.map((node) => node.html)}`);
  },
};

function plain(text) {
  return text.replaceAll(/\s+/g, " ").trim();
}

/** A person clicks once to press a button, to choose, and to be in a field. */
const COUNTED = ["click", "fill", "select"];
let clicks = 0;
const results = [];
for (const [name, ...given] of steps) {
  try {
    if (name === "open") clicks = 0;
    if (COUNTED.includes(name)) clicks++;
    const result = await doing[name](...given);
    if (!["open", "back", "wait", "gone", "shot", "select", "slide", "meet"].includes(name)) {
      if (result !== undefined) results.push(result);
    }
  } catch (error) {
    const shown = plain(await page.locator("body").innerText());
    throw new Error(`${name} ${given}: ${error.message}\nthe page has: ${shown}\n${mistakes}`);
  }
}
await browser.close();
console.log(JSON.stringify({ results, mistakes, origins: [...new Set(requests)] }));
