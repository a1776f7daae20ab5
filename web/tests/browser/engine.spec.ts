// Pipeline and engine: steps with their idle time, the trace, memory, features, cancelling.

import { readFile } from "node:fs/promises";
import { ask, chats, chunks, expect, serve, setOptions, test } from "./fixtures";
import type { Exchange } from "./wire";

test("the pipeline shows steps and their idle time, in figures and as text", async ({ app }) => {
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
});

test("idle time is red on the canvas, where it was and as long as it was", async ({ app }) => {
  const ms = 1_000_000;
  const host = { plan: [0, 9], submit: [9, 12], wait: [12, 13], collect: [13, 14], emit: [14, 15] };
  const counts = { rows: 1, tokens: 1, in_flight: 2, prompt_tokens: 0, drafted: 0, accepted: 0, draft_ns: 0 };
  const steps = [
    { step: 1, ...counts, ...host, device: [0, ms], idle_ns: null },
    { step: 2, ...counts, ...host, device: [2 * ms, 3 * ms], idle_ns: ms },
  ];
  const body = `event: steps\ndata: ${JSON.stringify({ now: 3 * ms, lost: 0, steps })}\n\n`;
  await app.route("**/v1/engine/events", (route) => route.fulfill({ contentType: "text/event-stream", body }));
  await app.reload();
  await app.getByRole("link", { name: "Pipeline" }).click();
  await expect(app.locator(".figures .figure").nth(0)).toHaveText(/33 %/);
  const [from, to] = await app.locator(".stage canvas").evaluate((element) => {
    const canvas = element as HTMLCanvasElement;
    const middle = Math.round((120 / canvas.clientHeight) * canvas.height);
    const { data } = canvas.getContext("2d")?.getImageData(0, middle, canvas.width, 1) ?? { data: [] };
    const wanted = getComputedStyle(document.documentElement).getPropertyValue("--red").trim();
    const red = [1, 3, 5].map((at) => Number.parseInt(wanted.slice(at, at + 2), 16));
    const found = Array.from({ length: canvas.width }, (_, x) => x).filter((x) =>
      red.every((part, index) => data[4 * x + index] === part),
    );
    return [(found[0] ?? 0) / canvas.width, (found.at(-1) ?? 0) / canvas.width];
  });
  expect(from).toBeCloseTo(1 / 3, 2);
  expect(to).toBeCloseTo(2 / 3, 2);
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

test("steps that are held stay while others come", async ({ app, server }) => {
  await ask(app, "Tell me about a fox.");
  await app.getByRole("link", { name: "Pipeline" }).click();
  await app.getByRole("button", { name: "Hold" }).click();
  const shown = () => app.locator(".stage canvas").evaluate((canvas) => (canvas as HTMLCanvasElement).toDataURL());
  const held = await shown();
  const newest = app.locator(".step-table tbody tr td").first();
  await app.getByText("The newest steps as a table").click();
  const before = Number(await newest.innerText());
  // More than there is room for.
  const data = { messages: [{ role: "user", content: "Hi" }], max_tokens: 700, ignore_eos: true, speculation: "off" };
  await app.request.post(`${server.address}v1/chat/completions`, { data, timeout: 60_000 });
  await expect.poll(async () => Number(await newest.innerText())).toBeGreaterThan(before + 600);
  expect(await shown()).toBe(held);
  await app.getByRole("button", { name: "Follow" }).click();
  await expect.poll(shown).not.toBe(held);
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

test("charts are live", async ({ app, server }) => {
  // However quick the machine is, something runs while the page looks.
  let looking = true;
  const load = (async () => {
    const data = { messages: [{ role: "user", content: "Tell me a long story." }], max_tokens: 500, ignore_eos: true };
    while (looking) expect((await app.request.post(`${server.address}v1/chat/completions`, { data })).ok()).toBe(true);
  })();
  await app.getByRole("link", { name: "Pipeline" }).click();
  const chart = (name: string) => app.getByRole("img", { name: new RegExp(`^${name}`) });
  await expect(chart("Tokens per second")).toHaveAttribute("aria-label", /now [1-9]/);
  await expect(chart("Requests in the batch")).toHaveAttribute("aria-label", /now 1,/);
  await expect(chart("Time to first token")).toHaveAttribute("aria-label", /at most [\d.]+ (µs|ms|s)/);
  await expect(chart("Cache blocks")).toHaveAttribute("aria-label", /at most 0\.\d %|at most [1-9]/);
  looking = false;
  await load;
});

test("acceptance by position adds up to what the answer was told", async ({ app, server }) => {
  await setOptions(app, { max_tokens: "300", ignore_eos: "true", temperature: "0" });
  await ask(app, "One day, a fox saw a red ball. One day, a fox saw a red ball. Tell me about the fox.");
  const { speculation } = chunks(chats(server).at(-1) as Exchange).findLast(({ usage }) => usage).usage;
  expect(speculation.accepted).toBeGreaterThan(0);
  await app.getByRole("link", { name: "Pipeline" }).click();
  const sums = async () => {
    const label = (await app.locator(".acceptance").getAttribute("aria-label")) ?? "";
    const places = [...label.matchAll(/draft \d+: (\d+) of (\d+)/g)].map((found) => found.slice(1).map(Number));
    const sum = (part: number) => places.reduce((total, place) => total + (place[part] ?? 0), 0);
    return { accepted: sum(0), drafted: sum(1) };
  };
  const { accepted, drafted } = speculation;
  await expect.poll(sums).toEqual({ accepted, drafted });
});

test("a page that nobody sees does not look, and looks again when it is seen", async ({ app, server }) => {
  const states = () => server.exchanges.filter(({ path }) => path === "/v1/engine/events").map(({ state }) => state);
  const become = (visibility: string) =>
    app.evaluate((value) => {
      Object.defineProperty(document, "visibilityState", { value, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }, visibility);
  await expect.poll(() => states().at(-1)).toBe("open");
  const before = states().length;
  await become("hidden");
  await expect.poll(() => states().at(-1)).toBe("cut");
  await become("visible");
  await expect.poll(states).toHaveLength(before + 1);
  await expect(app.locator(".dot.open")).toBeVisible();
  expect(states().filter((state) => state === "open")).toHaveLength(1);
});

test("the engine tells its features with reasons and its memory", async ({ app, server }) => {
  const known = await (await app.request.get(`${server.address}v1/engine`)).json();
  await app.getByRole("link", { name: "Engine" }).click();
  await expect(app.locator(".features tbody tr")).toHaveCount(known.features.length);
  await app.getByLabel("Filter the features").fill("pipeline");
  await expect(app.getByRole("row", { name: /steps in flight --pipeline-depth/ })).toBeVisible();
  await expect(app.getByRole("img", { name: /^Weights [\d.]+ MiB, KV blocks/ })).toBeVisible();
});

test("the engine's start is told, which stays true while one looks", async ({ app }) => {
  await app.clock.setFixedTime(new Date("2026-01-05T10:00:00Z"));
  await app.route("**/v1/engine", async (route) => {
    const reply = await route.fetch();
    await route.fulfill({ response: reply, json: { ...(await reply.json()), uptime_seconds: 3600 } });
  });
  await app.reload();
  await app.getByRole("link", { name: "Engine" }).click();
  await expect(app.getByText("Up since").locator("time")).toHaveAttribute("datetime", "2026-01-05T09:00:00.000Z");
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

test("an answer of the chat that is cancelled here is a stopped one there, with what it had", async ({ app }) => {
  await setOptions(app, { max_tokens: "3900", ignore_eos: "true" });
  await app.getByLabel("Message", { exact: true }).fill("Tell me a long story.");
  await app.keyboard.press("Enter");
  await expect(app.locator(".answer .markdown")).toHaveText(/\w+ \w+ \w+/);
  await app.getByRole("link", { name: "Engine" }).click();
  await app.getByRole("row", { name: /page-/ }).getByRole("button", { name: "Cancel" }).click();
  await app.getByRole("link", { name: "Chat", exact: true }).click();
  await expect(app.locator(".answer")).toHaveAttribute("data-state", "stopped");
  await expect(app.locator(".answer .markdown")).toHaveText(/\w+ \w+ \w+/);
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
