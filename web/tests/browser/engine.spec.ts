// Pipeline and engine: steps with their idle time, the trace, memory, features, cancelling.

import { readFile } from "node:fs/promises";
import { ask, expect, serve, setOptions, test } from "./fixtures";

test("the pipeline shows steps and their idle time, in figures, on the canvas and as text", async ({ app }) => {
  await setOptions(app, { max_tokens: "300", ignore_eos: "true" });
  await ask(app, "Tell me a story.");
  await app.getByRole("link", { name: "Pipeline" }).click();
  const figures = app.locator(".figures .figure");
  await expect(figures.nth(0)).toHaveText(/Device idle with work waiting[\d.]+ %/);
  const steps = Number((await figures.nth(4).locator("dd").innerText()).trim());
  expect(steps).toBeGreaterThan(20);
  await app.getByText("The newest steps as a table").click();
  const rows = app.locator(".step-table tbody tr");
  await expect(rows).toHaveCount(20);
  const cells = await rows.first().locator("td").allInnerTexts();
  expect(cells[0]).toMatch(/^\d+$/);
  expect(cells[8]).toMatch(/^([\d.]+ (µs|ms|s)|no work)$/);
  // What the table calls idle is red on the canvas.
  const red = () =>
    app.locator(".stage canvas").evaluate((canvas) => {
      const { width, height } = canvas as HTMLCanvasElement;
      const pixels = (canvas as HTMLCanvasElement).getContext("2d")?.getImageData(0, 0, width, height).data ?? [];
      let count = 0;
      for (let at = 0; at < pixels.length; at += 4) {
        const [r, g, b] = [pixels[at] ?? 0, pixels[at + 1] ?? 0, pixels[at + 2] ?? 0];
        if (r > g + 40 && r > b + 40 && Math.abs(g - b) < 40) count += 1;
      }
      return count;
    });
  expect(await red()).toBeGreaterThan(0);
});

test("the timeline is zoomed and moved by wheel, pointer and keys, and follows again", async ({ app }) => {
  await ask(app, "Tell me about a fox.");
  await app.getByRole("link", { name: "Pipeline" }).click();
  const stage = app.getByRole("application");
  const width = () => stage.locator(".stage-note").innerText();
  const before = await width();
  await stage.focus();
  await app.keyboard.press("+");
  await expect.poll(width).not.toBe(before);
  const near = await width();
  await app.keyboard.press("ArrowLeft");
  await app.keyboard.press("-");
  await expect.poll(width).not.toBe(near);
  await expect(app.getByRole("button", { name: "Follow" })).toBeVisible();
  await stage.hover();
  await app.mouse.wheel(0, -400);
  await app.mouse.down();
  await app.mouse.move(500, 300);
  await app.mouse.up();
  await expect(stage.locator(".stage-note")).toContainText(/step \d+ · |shown/);
  await stage.focus();
  await app.keyboard.press("End");
  await expect(app.getByRole("button", { name: "Hold" })).toBeVisible();
});

test("one click exports a trace that other programs read", async ({ app }) => {
  await ask(app, "Tell me about a fox.");
  await app.getByRole("link", { name: "Pipeline" }).click();
  const download = app.waitForEvent("download");
  await app.getByRole("button", { name: "Export trace" }).click();
  const file = await download;
  expect(file.suggestedFilename()).toBe("paceline-trace.json");
  const { traceEvents } = JSON.parse(await readFile(await file.path(), "utf8"));
  expect(traceEvents.filter((event: { ph: string }) => event.ph === "X").length).toBeGreaterThan(20);
});

test("charts are live", async ({ app }) => {
  await setOptions(app, { max_tokens: "2000", ignore_eos: "true" });
  await app.getByLabel("Message", { exact: true }).fill("Tell me a long story.");
  await app.keyboard.press("Enter");
  await app.getByRole("link", { name: "Pipeline" }).click();
  const chart = (name: string) => app.getByRole("img", { name: new RegExp(`^${name}`) });
  await expect(chart("Tokens per second")).toHaveAttribute("aria-label", /now [1-9]/);
  await expect(chart("Requests in the batch")).toHaveAttribute("aria-label", /now 1,/);
  await expect(chart("Time to first token")).toHaveAttribute("aria-label", /at most [\d.]+ (µs|ms|s)/);
  await expect(chart("Cache blocks")).toHaveAttribute("aria-label", /at most 0\.\d %|at most [1-9]/);
  await app.getByRole("link", { name: "Chat", exact: true }).click();
  await app.keyboard.press("Escape");
});

test("the engine tells its features with reasons and its memory", async ({ app, server }) => {
  const known = await (await app.request.get(`${server.address}v1/engine`)).json();
  await app.getByRole("link", { name: "Engine" }).click();
  await expect(app.locator(".features tbody tr")).toHaveCount(known.features.length);
  await app.getByLabel("Filter the features").fill("pipeline");
  await expect(app.getByRole("row", { name: /steps in flight --pipeline-depth/ })).toBeVisible();
  await expect(app.getByRole("img", { name: /^Weights [\d.]+ MiB, KV blocks/ })).toBeVisible();
});

test("a running request is listed and can be cancelled", async ({ app, server }) => {
  const reply = app.request.post(`${server.address}v1/chat/completions`, {
    headers: { "x-request-id": "somebody-elses" },
    data: { messages: [{ role: "user", content: "Hi" }], max_tokens: 3900, ignore_eos: true },
    timeout: 60_000,
  });
  await app.getByRole("link", { name: "Engine" }).click();
  const row = app.getByRole("row", { name: /somebody-elses/ });
  await expect(row).toContainText("running");
  await row.getByRole("button", { name: "Cancel" }).click();
  await expect(row).toHaveCount(0);
  const { choices, usage } = await (await reply).json();
  expect(choices[0].finish_reason).toBe("abort");
  expect(usage.completion_tokens).toBeLessThan(3900);
});

test("with keys, the page asks for one and keeps it", async ({ page }) => {
  const server = await serve("--api-key", "secret");
  try {
    await page.goto(server.address);
    await page.getByRole("textbox", { name: "API key" }).fill("secret");
    await page.getByRole("button", { name: "Use this key" }).click();
    await expect(page.getByText("storyteller", { exact: true })).toBeVisible();
    await page.reload();
    await ask(page, "Hello.");
    await expect(page.locator(".answer")).toHaveAttribute("data-state", "done");
  } finally {
    await server.stop();
  }
});
