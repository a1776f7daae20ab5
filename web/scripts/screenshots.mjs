// The pictures in docs/images, from the real program and its built-in model: light, dark, pipeline, phone.
// How many drafts pay depends on what else the machine does: take them on a quiet one, and look at them.
//   npm run build, build Paceline, then: npm run screenshots [NAME...]

import { spawn } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { chromium } from "@playwright/test";
import { build } from "esbuild";
import { root } from "./build.mjs";

/** More than this makes a README slow. */
const LIMIT = 200 * 1024;

const images = join(root, "../docs/images");
const program = process.env.PACELINE ?? join(root, "../target/debug/paceline");

/** The browser of the tests. */
async function browser() {
  const outfile = join(root, "node_modules/.cache/chromium.mjs");
  const entryPoints = [join(root, "tests/browser/chromium.ts")];
  await build({ entryPoints, outfile, bundle: true, platform: "node", format: "esm" });
  process.chdir(root);
  const found = (await import(outfile)).chromium();
  return chromium.launch({ ...found, args: ["--no-sandbox", "--disable-gpu", "--no-zygote"] });
}

function serve() {
  const child = spawn(program, ["serve", "--port", "0"], { stdio: ["ignore", "pipe", "pipe"] });
  return new Promise((resolve, reject) => {
    for (const input of [child.stdout, child.stderr]) {
      createInterface({ input }).on("line", (line) => {
        const address = /listening on (http:\S+)/.exec(line)?.[1];
        if (address !== undefined) resolve({ address, stop: () => child.kill() });
      });
    }
    child.once("exit", () => reject(new Error(`${program} has ended`)));
  });
}

async function save(page, name) {
  const session = await page.context().newCDPSession(page);
  const clip = { x: 0, y: 0, ...page.viewportSize(), scale: 2 };
  for (const quality of [90, 80, 70, 60]) {
    const { data } = await session.send("Page.captureScreenshot", { format: "webp", quality, clip });
    const bytes = Buffer.from(data, "base64");
    if (bytes.length > LIMIT) continue;
    writeFileSync(join(images, `${name}.webp`), bytes);
    console.log(`${name}.webp: ${bytes.length} bytes at quality ${quality}`);
    return;
  }
  throw new Error(`${name} does not get below ${LIMIT} bytes`);
}

async function ask(page, text) {
  await page.locator("#composer").fill(text);
  await page.keyboard.press("Enter");
  await page.locator(".answer[data-state=done]").last().waitFor();
  await page.locator(".composer [aria-label=Send]").waitFor();
}

/** A seed whose story is a good one; others give other pictures. */
async function settle(page, options) {
  await page.keyboard.press("Escape");
  await page.keyboard.press("s");
  for (const [name, value] of Object.entries(options)) await page.getByLabel(name, { exact: true }).fill(value);
}

const server = await serve();
const chrome = await browser();
mkdirSync(images, { recursive: true });

async function open(options) {
  const context = await chrome.newContext({ deviceScaleFactor: 2, ...options });
  const page = await context.newPage();
  await page.goto(server.address);
  await page.locator(".dot.open").waitFor();
  return page;
}

const WIDE = { width: 1440, height: 900 };
const PHONE = { viewport: { width: 390, height: 844 }, deviceScaleFactor: 3, isMobile: true, hasTouch: true };

async function say(seed, messages) {
  const body = JSON.stringify({ messages, seed, max_tokens: 300 });
  const headers = { "content-type": "application/json" };
  const reply = await fetch(`${server.address}/v1/chat/completions`, { method: "POST", headers, body });
  return (await reply.json()).choices[0].message;
}

/** A story, which is told again. */
async function tell(seed) {
  const messages = [{ role: "user", content: "Tell me a story." }];
  messages.push(await say(seed, messages), { role: "user", content: "Tell me the same story again." });
  await say(seed, messages);
}

/** The load that is under way: the server stays until it has ended. */
const load = [];

/** Some load until `going` says otherwise, so that there is something to see. */
async function storyteller(seed, going) {
  for (let round = seed; going(); round += 3) await tell(round);
}

const scenes = {
  async light() {
    const page = await open({ viewport: WIDE, colorScheme: "light" });
    await settle(page, { seed: "4" });
    await page.getByRole("tab", { name: "Drafts" }).click();
    await ask(page, "Tell me a story about a fox.");
    await ask(page, "Tell me the same story again.");
    await page.locator(".answer .refused").first().hover();
    return page;
  },
  async dark() {
    const page = await open({ viewport: WIDE, colorScheme: "dark" });
    await settle(page, { seed: "11" });
    await page.getByRole("tab", { name: "Drafts" }).click();
    await ask(page, "Tell me a story about a brave little boat.");
    await ask(page, "Tell me the story again.");
    await page.locator(".prove").last().click();
    await page.locator(".verdict.good").waitFor();
    return page;
  },
  async pipeline() {
    const page = await open({ viewport: WIDE, colorScheme: "dark" });
    let going = true;
    page.once("close", () => {
      going = false;
    });
    for (const seed of [0, 1, 2]) load.push(storyteller(seed, () => going));
    await page.getByRole("link", { name: "Pipeline" }).click();
    await page.waitForTimeout(20_000);
    await page.getByRole("button", { name: "Hold" }).click();
    await page.mouse.move(5, 500);
    return page;
  },
  async phone() {
    const page = await open({ ...PHONE, colorScheme: "light" });
    await ask(page, "Tell me a story about a fox.");
    await page.getByRole("button", { name: /Tell me the story again/ }).tap();
    await page.locator(".answer[data-state=done]").nth(1).waitFor();
    await page.locator(".status").tap();
    return page;
  },
};

const wanted = process.argv.slice(2);
try {
  // Until the engine knows what drafts cost here, it makes few.
  for (let seed = 0; seed < 12; seed += 1) await tell(seed);
  for (const [name, scene] of Object.entries(scenes)) {
    if (wanted.length > 0 && !wanted.includes(name)) continue;
    const page = await scene();
    await save(page, `page-${name}`);
    await page.context().close();
    await Promise.all(load);
  }
} finally {
  await chrome.close();
  server.stop();
}
