// Chats in headless Chromium, over both protocols, and prints what it showed as JSON.
//
//   node browser.mjs '{"chromium": …, "page": …, "refusedPage": …, "server": …, "folder": …}'
//
// page, refusedPage: where the page is served, from an origin that the server knows and from one that
// it does not. folder: for the browser's own files, and for screenshots.

import { join } from "node:path";
import { chromium } from "playwright-core";

const {
  chromium: executablePath,
  page: url,
  refusedPage,
  server,
  folder,
} = JSON.parse(process.argv[2]);
/** Longer than any step takes, also on a busy machine. */
const WAIT_MS_MAX = 30_000;
/** More than the six connections that a browser opens to a server. */
const LEFT_PAGES = 7;

const browser = await chromium.launchPersistentContext(join(folder, "profile"), {
  executablePath,
  headless: true,
  viewport: { width: 1040, height: 760 },
  args: [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
  ],
  // People's browsers keep the pages that were left, for Back.
  ignoreDefaultArgs: ["--disable-back-forward-cache"],
});
browser.setDefaultTimeout(WAIT_MS_MAX);

/** Opens the page in a session, and records its calls and errors. */
async function open(at, session, protocol) {
  const page = await browser.newPage();
  const seen = { calls: [], mistakes: [] };
  page.on("pageerror", (error) => seen.mistakes.push(String(error)));
  page.on("request", (request) => {
    const type = request.headers()["content-type"];
    if (request.method() === "POST") {
      seen.calls.push([request.url().split("/").at(-1), type]);
    }
  });
  await page.goto(`${at}?${new URLSearchParams({ server, session, protocol })}`);
  return { page, seen };
}

/** Sends a message, and waits for its answer. */
async function say(page, text) {
  const before = await page.locator(".user").count();
  await page.fill("#text", text);
  await page.click(".composer button");
  await page.waitForFunction(
    (count) =>
      document.querySelectorAll(".user").length > count && document.body.dataset.busy === undefined,
    before,
  );
}

async function texts(page, selector) {
  return (await page.locator(selector).allInnerTexts()).map((text) =>
    text.replaceAll(/\s*\n\s*/g, " | ").trim(),
  );
}

const results = {};

// Page after page in one tab: those that were left hold no connection.
const { page: tab } = await open(url, "browser-left-0", "connect");
for (let number = 1; number <= LEFT_PAGES; number++) {
  await say(tab, "hello");
  await tab.waitForSelector("#events li");
  const session = `browser-left-${number}`;
  await tab.goto(`${url}?${new URLSearchParams({ server, session, protocol: "connect" })}`);
}
await say(tab, "hello");
await tab.goBack({ waitUntil: "commit" });
await tab.waitForSelector("#messages > li.agent");
await say(tab, "How much VAT do I owe this quarter?");
await tab.waitForSelector("#events li:nth-child(4)");
results.backAgain = await texts(tab, "#events .revision");
await tab.close();
for (const [protocol, other] of [
  ["connect", "grpc-web"],
  ["grpc-web", "connect"],
]) {
  const { page, seen } = await open(url, `browser-${protocol}`, protocol);
  await say(page, "hello");
  await say(page, "How much VAT do I owe this quarter?");
  await say(page, "12,000");
  await say(page, "/status");
  const calls = seen.calls.splice(0);
  await page.waitForSelector("#events li:nth-child(6)");
  // The service has the conversation: it continues over the other protocol.
  await page.check(`input[value="${other}"]`, { force: true });
  await say(page, "when is it due?");
  await page.waitForSelector("#events li:nth-child(8)");
  await page.screenshot({ path: join(folder, `${protocol}.png`) });
  results[protocol] = {
    messages: await texts(page, "#messages > li"),
    revisions: await texts(page, "#events .revision"),
    calls,
    callsOfOther: seen.calls,
    mistakes: seen.mistakes,
  };
  // The service cannot be reached: the page continues with the last known agent.
  await page.route("**/Route", (route) => route.abort("connectionrefused"));
  await say(page, "and next year?");
  results[protocol].degraded = await texts(page, "#messages > li:last-child .degraded");
  await page.screenshot({ path: join(folder, `${protocol}-offline.png`) });
  await page.close();

  const refused = await open(refusedPage, `refused-${protocol}`, protocol);
  await say(refused.page, "hello");
  results[protocol].refused = await texts(refused.page, "#messages > li.failure");
  results[protocol].answeredThere = await refused.page.locator("#messages > li.agent").count();
  await refused.page.screenshot({ path: join(folder, `${protocol}-refused.png`) });
  await refused.page.close();
}

const offered = await open(url, "browser-offer", "connect");
await say(offered.page, "/agent income_tax");
await say(offered.page, "Do I have to file an income tax return?");
await say(offered.page, "52,000");
await say(offered.page, "Has invoice F-1023 been paid?");
results.offer = { offers: await texts(offered.page, ".offer") };
await offered.page.screenshot({ path: join(folder, "offer.png") });
if (results.offer.offers.length > 0) {
  await offered.page.click(".offer .options button:first-child");
  await offered.page.waitForFunction(() => document.body.dataset.busy === undefined);
  results.offer.after = await texts(offered.page, "#messages > li:last-child");
  results.offer.disabled = await offered.page.locator(".offer button:disabled").count();
  await offered.page.screenshot({ path: join(folder, "offer-taken.png") });
}
results.offer.mistakes = offered.seen.mistakes;

const chosen = await open(url, "browser-choose", "connect");
await say(chosen.page, "/agents");
results.choose = { options: await texts(chosen.page, ".reply .options button") };
await chosen.page.screenshot({ path: join(folder, "choose.png") });
await chosen.page.click(".reply .options button:first-child");
await chosen.page.waitForFunction(() => document.body.dataset.busy === undefined);
results.choose.after = await texts(chosen.page, "#messages > li:last-child");

await browser.close();
console.log(JSON.stringify(results));
