// Chat: asking, stopping, branches, settings, what the browser keeps.

import { execFile } from "node:child_process";
import { readFile } from "node:fs/promises";
import { promisify } from "node:util";
import type { Page } from "@playwright/test";
import { answerText, ask, chats, chunks, expect, setOptions, settled, shownText, test } from "./fixtures";
import type { Exchange } from "./wire";

const LONG = { max_tokens: "3500", ignore_eos: "true" };

test("a question is answered, and both are there after a reload", async ({ app }) => {
  await ask(app, "Tell me about a fox.");
  const text = await shownText(app);
  expect(text.length).toBeGreaterThan(20);
  await expect(app.locator(".question")).toHaveText("Tell me about a fox.");
  await app.reload();
  await app.getByRole("button", { name: "Tell me about a fox.", exact: true }).click();
  await expect(answerText(app)).toHaveText(text);
});

test("an answer can be stopped, and the server stops too", async ({ app, server }) => {
  const slots = async () => (await (await app.request.get(`${server.address}v1/engine`)).json()).slots;
  const { tokens: generated } = await slots();
  await setOptions(app, LONG);
  await app.getByLabel("Message", { exact: true }).fill("Tell me a long story.");
  await app.keyboard.press("Enter");
  await expect(answerText(app)).toHaveText(/\w+ \w+ \w+/);
  const aborted = async () => {
    const metrics = await (await app.request.get(`${server.address}metrics`)).text();
    return Number(/^vllm:request_success_total\{.*finished_reason="abort".*\} (\d+)/m.exec(metrics)?.[1] ?? 0);
  };
  const before = await aborted();
  await app.keyboard.press("Escape");
  await expect(app.locator(".answer")).toHaveAttribute("data-state", "stopped");
  await expect(app.getByText("stopped", { exact: true })).toBeVisible();
  // It did not come to its end by itself a little later: the engine gave it up.
  await expect.poll(aborted).toBe(before + 1);
  expect(chats(server).at(-1)?.state).toBe("cut");
  // Nor does it work on for nobody: the next answer's tokens are all that it generates from here on.
  await expect.poll(async () => (await slots()).running).toBe(0);
  const { tokens } = await slots();
  expect(tokens - generated).toBeLessThan(Number(LONG.max_tokens));
  await setOptions(app, { max_tokens: "20" });
  await ask(app, "And then?");
  expect((await slots()).tokens).toBe(tokens + 20);
});

test("a retry is another answer beside the first, and arrows lead between them", async ({ app, server }) => {
  await ask(app, "Tell me about a cat.");
  const first = await shownText(app);
  await app.getByRole("button", { name: "Another answer" }).click();
  await expect(app.getByText("2 / 2")).toBeVisible();
  await settled(app);
  const second = await shownText(app);
  expect(second).not.toBe(first);
  // The same question with another seed, and nothing else is different.
  const [asked, again] = chats(server)
    .slice(-2)
    .map(({ body }) => body);
  expect(again.seed).not.toBe(asked.seed);
  expect({ ...again, seed: asked.seed }).toEqual(asked);
  await app.getByRole("button", { name: "Earlier answer" }).click();
  await expect(answerText(app)).toHaveText(first);
  await app.getByRole("button", { name: "Later answer" }).click();
  await expect(answerText(app)).toHaveText(second);
});

test("with a seed that was set, the first answer has it and a retry the next one", async ({ app, server }) => {
  await setOptions(app, { seed: "7", max_tokens: "40" });
  await ask(app, "Tell me about a cat.");
  const first = await shownText(app);
  await app.getByRole("button", { name: "Another answer" }).click();
  await expect(app.getByText("2 / 2")).toBeVisible();
  await settled(app);
  expect(await shownText(app)).not.toBe(first);
  // What is asked in another way has the seed that was set.
  await setOptions(app, { temperature: "0.5" });
  await app.getByRole("button", { name: "Another answer" }).click();
  await expect(app.getByText("3 / 3")).toBeVisible();
  await settled(app);
  expect(
    chats(server)
      .map(({ body }) => body.seed)
      .slice(-3),
  ).toEqual([7, 8, 7]);
});

test("an edited question is a branch, and the old one keeps its answer", async ({ app }) => {
  await ask(app, "Tell me about a dog.");
  const first = await shownText(app);
  await app.locator(".question").hover();
  await app.getByRole("button", { name: "Edit this message" }).click();
  await app.getByLabel("Edit the message").fill("Tell me about a bird.");
  await app.keyboard.press("Enter");
  await expect(app.locator(".question > p")).toHaveText("Tell me about a bird.");
  await settled(app);
  await app.getByRole("button", { name: "Earlier message" }).click();
  await expect(app.locator(".question > p")).toHaveText("Tell me about a dog.");
  await expect(answerText(app)).toHaveText(first);
});

test("a conversation goes on, with its system prompt and the seed that was set", async ({ app, server }) => {
  await setOptions(app, { seed: "7", max_tokens: "16", temperature: "0" });
  await app.getByLabel("System prompt").fill("Be brief.");
  await ask(app, "Hello.");
  const body = chats(server).at(-1)?.body;
  expect(body).toMatchObject({ seed: 7, max_tokens: 16, temperature: 0, return_token_origins: true });
  // What was not set is what the server suggests to the page, and is shown as that.
  const { page } = (await (await app.request.get(`${server.address}v1/engine`)).json()).sampling;
  expect(body.top_p).toBe(page.top_p.value);
  await expect(app.getByLabel("top_p", { exact: true })).toHaveAttribute("placeholder", String(page.top_p.value));
  expect(body.messages).toEqual([
    { role: "system", content: "Be brief." },
    { role: "user", content: "Hello." },
  ]);
  const first = await shownText(app);
  await ask(app, "And then?");
  expect(chats(server).at(-1)?.body.messages.slice(1)).toEqual([
    { role: "user", content: "Hello." },
    { role: "assistant", content: first },
    { role: "user", content: "And then?" },
  ]);
});

test("what cannot be sent is told beside its field and not sent", async ({ app }) => {
  await setOptions(app, { top_p: "2" });
  await expect(app.getByText("This must be above 0 and at most 1.", { exact: true })).toBeVisible();
  await app.getByLabel("Message", { exact: true }).fill("Hello.");
  await expect(app.getByRole("button", { name: "Send" })).toBeDisabled();
  await app.getByLabel("top_p", { exact: true }).fill("");
  await app.getByLabel("Answer as JSON (schema)").fill("{");
  await expect(app.getByText(/^This must be JSON/)).toBeVisible();
  await app.getByRole("button", { name: "Back to the server's defaults" }).click();
  await expect(app.getByRole("button", { name: "Send" })).toBeEnabled();
});

test("a refusal of the server is shown where the answer would be", async ({ app, complaints }) => {
  await setOptions(app, { logit_bias: '{"99999999": 1}' });
  await app.getByLabel("Message", { exact: true }).fill("Hello.");
  await app.keyboard.press("Enter");
  await expect(app.locator(".answer")).toHaveAttribute("data-state", "failed");
  await expect(app.getByRole("alert")).toContainText("logit_bias");
  // The browser reports every reply of 400 by itself.
  complaints.found.splice(0);
});

test("an answer of a given form is JSON, and a tool is called and told its result", async ({ app, server }) => {
  await app.getByRole("tab", { name: "Settings" }).click();
  const schema = { type: "object", properties: { colour: { enum: ["red", "blue"] } }, required: ["colour"] };
  await app.getByLabel("Answer as JSON (schema)").fill(JSON.stringify({ ...schema, additionalProperties: false }));
  await ask(app, "What colour is the ball?");
  const code = app.locator(".answer .code code");
  expect(["red", "blue"]).toContain(JSON.parse(await code.innerText()).colour);
  await app.getByLabel("Answer as JSON (schema)").fill("");
  const tool = { type: "function", function: { name: "throw", parameters: schema } };
  await app.getByLabel("Tools (JSON)").fill(JSON.stringify([tool]));
  await app.getByLabel("tool_choice").selectOption("required");
  await ask(app, "Throw a ball!");
  await expect(app.locator(".tool-name")).toHaveText("throw");
  await app.getByLabel("tool_choice").selectOption("none");
  await app.getByLabel("Result of throw").fill("It flew far.");
  const before = chats(server).length;
  await app.getByRole("button", { name: "Send result" }).click();
  await expect.poll(() => chats(server).length).toBe(before + 1);
  await settled(app);
  const { messages } = chats(server).at(-1)?.body ?? {};
  expect(messages.at(-1)).toMatchObject({ role: "tool", content: "It flew far." });
  expect(messages.at(-1).tool_call_id).toBe(messages.at(-2).tool_calls[0].id);
});

test("what a suggestion has set is for its conversation alone", async ({ app, server }) => {
  await app.getByRole("button", { name: /shows JSON by a schema/ }).click();
  await settled(app);
  expect(chats(server).at(-1)?.body.response_format.type).toBe("json_schema");
  // Shown as it was written, indents included.
  const said = chunks(chats(server).at(-1) as Exchange).map(({ choices }) => choices[0]?.delta?.content ?? "");
  expect(await app.locator(".answer .code code").textContent()).toBe(said.join(""));
  await expect(app.getByRole("button", { name: "JSON schema" })).toBeVisible();
  await app.getByRole("button", { name: "New conversation" }).click();
  await expect(app.getByRole("button", { name: "JSON schema" })).toHaveCount(0);
  await ask(app, "Tell me about a fox.");
  expect(chats(server).at(-1)?.body.response_format).toBeUndefined();
  // What a person sets is kept.
  await setOptions(app, { temperature: "0" });
  await app.getByRole("button", { name: "New conversation" }).click();
  await expect(app.getByRole("button", { name: "1 option" })).toBeVisible();
});

/** The titles in the browser's database. */
function kept(page: Page): Promise<string[]> {
  return page.evaluate(
    () =>
      new Promise((resolve) => {
        indexedDB.open("paceline").onsuccess = (event) => {
          const database = (event.target as IDBOpenDBRequest).result;
          const all = database.transaction("conversations").objectStore("conversations").getAll();
          all.onsuccess = () => resolve(all.result.map(({ title }: { title: string }) => title));
        };
      }),
  );
}

test("conversations can be renamed, exported, deleted and brought back", async ({ app }) => {
  await setOptions(app, { max_tokens: "8" });
  await ask(app, "Tell me about a pond.");
  const open = async (item: string) => {
    await app.getByRole("button", { name: /^Actions for/ }).click();
    await app.getByRole("menuitem", { name: item }).click();
  };
  await open("Rename");
  await app.getByLabel("Title").fill("The pond");
  await app.keyboard.press("Enter");
  await expect(app.getByRole("button", { name: "The pond", exact: true })).toBeVisible();
  const download = app.waitForEvent("download");
  await open("Export as Markdown");
  const file = await download;
  expect(file.suggestedFilename()).toBe("the-pond.md");
  expect(await readFile(await file.path(), "utf8")).toContain("Tell me about a pond.");
  await open("Delete");
  await expect(app.getByRole("button", { name: "The pond", exact: true })).toHaveCount(0);
  await app.getByRole("button", { name: "Undo" }).click();
  await expect.poll(() => kept(app)).toEqual(["The pond"]);
  await app.reload();
  await expect(app.getByRole("button", { name: "The pond", exact: true })).toBeVisible();
});

test("a request can be copied as Python, and as a curl command that gives the same text", async ({ app }) => {
  await setOptions(app, { max_tokens: "24" });
  await ask(app, 'Who\'s there? "Me", said the fox.');
  const copied = async (item: string, what: string) => {
    await app.getByRole("button", { name: "Copy the request" }).click();
    await app.getByRole("menuitem", { name: item }).click();
    await expect(app.getByText(`${what} copied.`)).toBeVisible();
    return app.evaluate(() => navigator.clipboard.readText());
  };
  expect(await copied("Copy as Python", "Python program")).toMatch(/from openai import OpenAI.*max_tokens=24/s);
  const command = await copied("Copy as curl", "curl command");
  const { stdout } = await promisify(execFile)("bash", ["-c", command]);
  const { content } = JSON.parse(stdout).choices[0].message;
  const letters = (text: string) => text.replaceAll(/\s/g, "");
  expect(letters(content)).toBe(letters(await shownText(app)));
});

test("the end of an answer stays in sight until one scrolls up", async ({ app }) => {
  await app.setViewportSize({ width: 390, height: 600 });
  await ask(app, "Tell me about a fox.");
  await ask(app, "Tell me the story again.");
  await expect(app.locator(".answer-footer").last()).toBeInViewport();
  const scroller = app.locator(".scroller");
  const below = () => scroller.evaluate((box) => box.scrollHeight - box.scrollTop - box.clientHeight);
  /** More of the answer, in the same moment as what `scroll` does. */
  const grow = (to: number) =>
    scroller.evaluate((box, to) => {
      box.scrollTop += to;
      const more = document.createElement("div");
      more.style.height = "300px";
      box.querySelector(".answer:last-of-type")?.append(more);
    }, to);
  await scroller.evaluate((box) => {
    box.scrollTop -= 40;
  });
  await expect.poll(below).toBeGreaterThan(30);
  await grow(40);
  await expect.poll(below).toBeLessThan(2);
  await scroller.hover();
  await app.mouse.wheel(0, -400);
  await expect.poll(below).toBeGreaterThan(100);
  const before = await below();
  await grow(0);
  expect(await below()).toBeGreaterThan(before);
});
