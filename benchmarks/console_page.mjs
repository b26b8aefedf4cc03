// Opens the console for a benchmark, and prints what it saw as a line of JSON.
//
//   node console_page.mjs '{"modules": …, "chromium": …, "url": …, "what": …, "seconds": …}'
//
// what: rows (the time to the first row, in new profiles), follow (when each row showed which revision),
// trace (the same, with Chromium's trace and the page's memory), many (pages that are open).

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const given = JSON.parse(process.argv[2]);
const { chromium } = createRequire(join(given.modules, "package.json"))("playwright-core");
const FRAME_MS = 1_000 / 60;

const browser = await chromium.launch({
  executablePath: given.chromium,
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage"],
});

async function open() {
  const context = await browser.newContext({ viewport: { width: 1200, height: 760 } });
  const page = await context.newPage();
  return { context, page };
}

/** In the page: notes when a row shows another revision. */
function observe() {
  window.shown = [];
  new MutationObserver((changes) => {
    const at = Date.now();
    for (const { target } of changes) {
      window.shown.push([target.dataset.session, Number(target.dataset.revision), at]);
    }
  }).observe(document.body, { subtree: true, attributeFilter: ["data-revision"] });
}

async function rows() {
  const found = [];
  for (let time = 0; time < given.times; time++) {
    const { context, page } = await open();
    const begunMs = Date.now();
    await page.goto(given.url, { waitUntil: "commit" });
    await page.waitForSelector("tbody tr");
    found.push(Date.now() - begunMs);
    await context.close();
  }
  return { rows_ms: found };
}

async function opened(page) {
  await page.goto(given.url);
  await page.waitForSelector("tbody tr");
  await page.waitForSelector('.live[data-live="live"]');
}

async function follow() {
  const { page } = await open();
  await opened(page);
  await page.evaluate(observe);
  console.log("ready");
  // A little longer than the messages come, for the last of them.
  await page.waitForTimeout(given.seconds * 1_000 + 2_000);
  return { shown: await page.evaluate(() => window.shown) };
}

async function trace() {
  const { page } = await open();
  await opened(page);
  await page.evaluate(observe);
  const session = await browser.newBrowserCDPSession();
  const events = [];
  session.on("Tracing.dataCollected", ({ value }) => events.push(...value));
  await session.send("Tracing.start", {
    transferMode: "ReportEvents",
    traceConfig: { includedCategories: ["devtools.timeline", "v8.execute"] },
  });
  await page.waitForTimeout(given.seconds * 1_000);
  const complete = new Promise((resolve) => session.once("Tracing.tracingComplete", resolve));
  await session.send("Tracing.end");
  await complete;
  const shown = await page.evaluate(() => window.shown);
  const { processInfo } = await session.send("SystemInfo.getProcessInfo");
  const renderers = processInfo.filter((each) => each.type === "renderer").map((each) => rssMb(each.id));
  return { shown, page_mb: Math.max(...renderers), ...scripting(events) };
}

function rssMb(pid) {
  const line = /VmRSS:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, "utf-8"));
  return (Number(line[1]) * 1_024) / 1e6;
}

/** Processor time in scripts by frame of 60 a second, of the thread that runs the page. */
function scripting(events) {
  const names = new Set(["FunctionCall", "TimerFire", "RunMicrotasks", "EvaluateScript", "v8.callFunction"]);
  const byThread = new Map();
  for (const each of events) {
    if (each.ph !== "X" || !names.has(each.name)) continue;
    const thread = `${each.pid} ${each.tid}`;
    const known = byThread.get(thread);
    if (known === undefined) byThread.set(thread, [each]);
    else known.push(each);
  }
  const timeOf = (list) => list.reduce((sum, each) => sum + (each.tdur ?? 0), 0);
  const busiest = [...byThread.values()].sort((one, other) => timeOf(other) - timeOf(one))[0] ?? [];
  const frames = new Map();
  let end = 0;
  let sum = 0;
  for (const each of busiest.sort((one, other) => one.ts - other.ts)) {
    // What is called inside of another one counts once.
    const from = Math.max(each.tts ?? 0, end);
    const until = (each.tts ?? 0) + (each.tdur ?? 0);
    if (until <= from) continue;
    end = until;
    sum += until - from;
    const frame = Math.floor(each.ts / 1_000 / FRAME_MS);
    frames.set(frame, (frames.get(frame) ?? 0) + (until - from) / 1_000);
  }
  const sorted = [...frames.values()].sort((one, other) => one - other);
  return {
    scripting_ms: sum / 1_000,
    frames: sorted.length,
    frame_p99_ms: sorted[Math.ceil(sorted.length * 0.99) - 1] ?? 0,
    frame_max_ms: sorted.at(-1) ?? 0,
  };
}

async function many() {
  for (let each = 0; each < given.pages; each++) {
    const { page } = await open();
    await opened(page);
  }
  console.log("ready");
  await new Promise((resolve) => setTimeout(resolve, given.seconds * 1_000 + 60_000));
  return {};
}

const seen = await { rows, follow, trace, many }[given.what]();
await browser.close();
console.log(JSON.stringify(seen));
