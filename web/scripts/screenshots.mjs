// The pictures in docs/images, from the real program and its built-in model: light, dark, pipeline, phone.
//   npm run build, build Paceline, then: npm run screenshots

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
  for (const quality of [90, 80, 70, 60]) {
    const { data } = await session.send("Page.captureScreenshot", { format: "webp", quality });
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

try {
  const wide = { width: 1440, height: 900 };
  const light = await open({ viewport: wide, colorScheme: "light" });
  await settle(light, { seed: "4", max_tokens: "220" });
  await light.getByRole("tab", { name: "Drafts" }).click();
  await ask(light, "Tell me a story about a fox.");
  await ask(light, "Tell me the same story again.");
  await light.locator(".answer .refused").last().hover();
  await save(light, "page-light");

  const dark = await open({ viewport: wide, colorScheme: "dark" });
  await settle(dark, { seed: "11", max_tokens: "220" });
  await dark.getByRole("tab", { name: "Drafts" }).click();
  await ask(dark, "Tell me a story about a brave little boat.");
  await dark.locator(".prove").last().click();
  await dark.locator(".verdict.good").waitFor();
  await save(dark, "page-dark");

  const load = Array.from({ length: 3 }, (_, index) =>
    dark.request.post(`${server.address}/v1/chat/completions`, {
      data: {
        messages: [{ role: "user", content: "Tell me a story." }],
        seed: index,
        max_tokens: 1500,
        ignore_eos: true,
      },
      timeout: 120_000,
    }),
  );
  await dark.getByRole("link", { name: "Pipeline" }).click();
  await dark.waitForTimeout(4000);
  await dark.getByRole("button", { name: "Hold" }).click();
  await save(dark, "page-pipeline");
  await Promise.all(load);

  const phone = await open({
    viewport: { width: 390, height: 844 },
    colorScheme: "light",
    isMobile: true,
    hasTouch: true,
  });
  await ask(phone, "Tell me a story about a fox.");
  await save(phone, "page-phone");
} finally {
  await chrome.close();
  server.stop();
}
