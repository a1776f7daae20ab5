// Drafts: the colours of tokens are what the server says, and the texts with and without drafts are compared.

import type { Page } from "@playwright/test";
import type { Usage } from "../../src/api/chat";
import type { OriginStep } from "../../src/model/origins";
import { ask, chats, chunks, expect, type Server, setOptions, settled, shownText, test } from "./fixtures";
import type { Exchange } from "./wire";

interface Told {
  usage: Usage;
  steps: OriginStep[];
  content: string;
}

/** Asks, and reads what the server sent with the answer. */
async function askAndRead(page: Page, server: Server, text: string): Promise<Told> {
  const told: Told = { usage: { prompt_tokens: 0, completion_tokens: 0 }, steps: [], content: "" };
  await ask(page, text);
  for (const chunk of chunks(chats(server).at(-1) as Exchange)) {
    told.usage = chunk.usage ?? told.usage;
    told.steps.push(...(chunk.choices[0]?.token_origins ?? []));
    told.content += chunk.choices[0]?.delta?.content ?? "";
  }
  return told;
}

/** How many tokens of the shown text have each colour. */
function shownColours(page: Page): Promise<Record<string, number>> {
  return page.locator(".answer [data-t]").evaluateAll((spans) => {
    const tokens = new Map(spans.map((span) => [span.getAttribute("data-t"), span.className] as const));
    const counts: Record<string, number> = { sampled: 0, ngram: 0, neural: 0, grammar: 0 };
    for (const name of tokens.values()) {
      const origin = /\bo-(\w+)/.exec(name)?.[1] ?? "";
      counts[origin] = (counts[origin] ?? 0) + 1;
    }
    return counts;
  });
}

const AGAIN =
  "One day, a fox saw a red ball. The fox liked the red ball. One day, a fox saw a red ball. Tell me about the fox and the red ball.";

test("every token has the colour of its origin, and they agree with usage.speculation", async ({ app, server }) => {
  await setOptions(app, { max_tokens: "400", ignore_eos: "true", temperature: "0" });
  const { usage, steps, content } = await askAndRead(app, server, AGAIN);
  const decodes = steps.filter(({ kind }) => kind === "decode");
  const sum = (of: (step: OriginStep) => number) => decodes.reduce((total, step) => total + of(step), 0);
  expect(usage.speculation).toMatchObject({
    steps: decodes.length,
    drafted: sum((step) => step.drafted),
    accepted: sum((step) => step.accepted),
  });
  expect(usage.speculation?.accepted).toBeGreaterThan(0);
  // What is shown is what was generated, token by token; those without text of their own have nothing to colour.
  const expected: Record<string, number> = { sampled: 0, ngram: 0, neural: 0, grammar: 0 };
  const tokens = steps.flatMap((step) => step.tokens);
  for (const { origin, text } of tokens) if (text.trim() !== "") expected[origin] = (expected[origin] ?? 0) + 1;
  expect(
    tokens
      .map(({ text }) => text)
      .join("")
      .trim(),
  ).toBe(content.trim());
  expect(await shownColours(app)).toEqual(expected);
  await app.getByRole("tab", { name: "Drafts" }).click();
  for (const origin of ["sampled", "ngram", "neural", "grammar"]) {
    const all = tokens.filter((token) => token.origin === origin).length;
    await expect(app.locator(`.legend-count[data-origin=${origin}]`)).toHaveText(String(all));
  }
  const shown = usage.speculation?.mean_acceptance_length.toFixed(2) ?? "";
  await expect(app.locator(".inspector .figure").first()).toContainText(shown);
});

test("refused drafts are shown under the pointer and by keyboard", async ({ app, server }) => {
  await setOptions(app, { max_tokens: "400", ignore_eos: "true" });
  const { steps } = await askAndRead(app, server, AGAIN);
  const refused = steps.find((step) => step.rejected.length > 0 && step.tokens.at(-1)?.text.trim());
  expect(refused, "no draft was refused in 400 tokens").toBeDefined();
  const wanted = refused?.rejected[0]?.text.trim() ?? "";
  await app.locator(".answer .refused").first().hover();
  await expect(app.getByRole("tooltip")).toContainText("Refused here");
  await app.mouse.move(5, 5);
  await expect(app.getByRole("tooltip")).toHaveCount(0);
  await app.getByRole("slider").focus();
  await app.keyboard.press("PageDown");
  await expect(app.getByRole("tooltip")).toContainText("Refused here");
  await expect(app.getByRole("slider")).toHaveAttribute("aria-valuetext", /refused drafts/);
  expect(wanted).not.toBe("");
});

test("what a grammar forces has its colour", async ({ app, server }) => {
  await app.getByRole("tab", { name: "Settings" }).click();
  const properties = { the_name_of_the_hero: { enum: ["fox", "bear"] } };
  const schema = { type: "object", properties, required: ["the_name_of_the_hero"], additionalProperties: false };
  await app.getByLabel("Answer as JSON (schema)").fill(JSON.stringify(schema));
  const { steps } = await askAndRead(app, server, "Who is it?");
  const forced = steps.flatMap(({ tokens }) => tokens).filter(({ origin }) => origin === "grammar");
  expect(forced.length).toBeGreaterThan(3);
  expect((await shownColours(app))["grammar"]).toBe(forced.filter(({ text }) => text.trim() !== "").length);
});

test("the switch runs the same seed without drafts beside every answer and shows that the texts are equal", async ({
  app,
  server,
}) => {
  await app.getByRole("switch", { name: "Run without drafts beside it" }).click();
  const before = chats(server).length;
  await ask(app, "Tell me about a fox. Tell me about a fox. Tell me about a fox.");
  await expect(app.locator(".verdict.good")).toContainText("Identical.");
  const both = chats(server).slice(before);
  const bodies = both.map(({ body }) => body);
  expect(bodies).toHaveLength(2);
  expect(bodies[1]).toMatchObject({ speculation: "off", seed: bodies[0].seed, messages: bodies[0].messages });
  expect(bodies[0].speculation).toBeUndefined();
  // It would be no proof if both, or neither, had drafts; or if what is shown beside the answer were the answer.
  const [drafted, without] = both.map((one) => chunks(one).findLast(({ usage }) => usage)?.usage.speculation?.drafted);
  expect(drafted).toBeGreaterThan(0);
  expect(without ?? 0).toBe(0);
  const twin = chunks(both[1] as Exchange).map(({ choices }) => choices[0]?.delta?.content ?? "");
  expect(await app.locator(".twin-text").textContent()).toBe(twin.join(""));
  // Markdown has no line ends between paragraphs.
  const letters = (text: string | null) => (text ?? "").replaceAll(/\s/g, "");
  expect(letters(await app.locator(".twin-text").textContent())).toBe(letters(await shownText(app)));
});

test("a single answer can be proved, and shown alone again", async ({ app }) => {
  await ask(app, "Tell me about a cat.");
  await app.getByRole("button", { name: "Prove equal" }).click();
  await expect(app.locator(".verdict.good")).toContainText("Identical.");
  await app.getByRole("button", { name: "Hide proof" }).click();
  await expect(app.locator(".proof")).toHaveCount(0);
});

test("a difference is shown where it is, and not hidden", async ({ app }) => {
  await ask(app, "Tell me about a dog.");
  const text = await shownText(app);
  const other = `${text.slice(0, 10)}#`;
  await app.route("**/v1/chat/completions", (route) =>
    route.fulfill({
      contentType: "text/event-stream",
      body: `data: ${JSON.stringify({ choices: [{ delta: { content: other } }] })}\n\ndata: [DONE]\n\n`,
    }),
  );
  await app.getByRole("button", { name: "Prove equal" }).click();
  await expect(app.locator(".verdict.bad")).toContainText("They differ at character 11");
  await expect(app.locator(".verdict.good")).toHaveCount(0);
});

const HOSTILE = [
  "# Title <script>window.hacked = 1</script>",
  "",
  'Some **bold** text, <img src=x onerror="window.hacked = 2"> and [a link](javascript:window.hacked=3), [another](https://example.org).',
  "",
  "![picture](https://example.org/x.png)",
  "",
  "```python",
  'def f(x):\n    return "<b>" + x',
  "```",
  "",
  "| a | b |",
  "|---|---|",
  "| 1 | 2 |",
].join("\n");

test("Markdown is shown, code is highlighted, and no markup of the model's reaches the page", async ({ app }) => {
  const pieces = HOSTILE.match(/.{1,7}/gs) ?? [];
  const steps = pieces.map((text, index) => ({
    kind: index === 0 ? "prefill" : "decode",
    source: index % 3 === 1 ? "ngram" : null,
    drafted: index % 3 === 1 ? 1 : 0,
    accepted: index % 3 === 1 ? 1 : 0,
    rejected: [],
    tokens: [{ id: index, text, origin: index % 3 === 1 ? "ngram" : "sampled" }],
  }));
  const chunks = pieces.map((content, index) => ({ choices: [{ delta: { content }, token_origins: [steps[index]] }] }));
  const body = [...chunks.map((chunk) => `data: ${JSON.stringify(chunk)}\n\n`), "data: [DONE]\n\n"].join("");
  await app.route("**/v1/chat/completions", (route) => route.fulfill({ contentType: "text/event-stream", body }));
  await ask(app, "Show me.");
  const answer = app.locator(".answer");
  await expect(answer.locator("h3")).toHaveText("Title <script>window.hacked = 1</script>");
  await expect(answer.locator("strong").first()).toHaveText("bold");
  await expect(answer.locator(".hljs-keyword").first()).toHaveText("def");
  await expect(answer.locator("pre code")).toHaveText('def f(x):\n    return "<b>" + x');
  await expect(answer.locator("td")).toHaveText(["1", "2"]);
  await expect(answer.locator("img, script")).toHaveCount(0);
  await expect(answer.locator("a")).toHaveCount(1);
  await expect(answer.locator("a")).toHaveAttribute("href", "https://example.org");
  expect(await app.evaluate(() => (window as { hacked?: number }).hacked)).toBeUndefined();
  // Colours go on through marks, links, code and tables.
  const wrong = await answer.locator("[data-t]").evaluateAll((spans, pieces) => {
    const bad = spans.filter((span) => !pieces[Number(span.getAttribute("data-t"))]?.includes(span.textContent ?? ""));
    return bad.map((span) => `${span.getAttribute("data-t")}: ${span.textContent}`);
  }, pieces);
  expect(wrong).toEqual([]);
  await settled(app);
});
