// Vercel's AI SDK with its provider for servers like OpenAI's: texts, streams, objects and tools.

import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { BASE, KEY, MODEL, run } from "./common.mjs";

const provider = createOpenAICompatible({
  name: "paceline",
  baseURL: `${BASE}/v1`,
  apiKey: KEY,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const model = provider(MODEL);
const prompt = "Tom has a ball. It is red and new. What is the ball like?";
const ball = z.object({
  colour: z.enum(["red", "green", "blue"]),
  size: z.number().int().min(0).max(9),
  new: z.boolean(),
});

await run({
  async a_text_comes_whole_and_in_pieces() {
    const options = { model, prompt, maxOutputTokens: 16, temperature: 0 };
    const whole = await generateText(options);
    const stream = streamText(options);
    const pieces = [];
    for await (const piece of stream.textStream) pieces.push(piece);
    assert.ok(whole.text.length > 0 && pieces.length > 1);
    assert.equal(pieces.join(""), whole.text);
    assert.deepEqual((await stream.usage).outputTokens, whole.usage.outputTokens);
  },
  async an_object_has_its_form() {
    const { output } = await generateText({ model, prompt, output: Output.object({ schema: ball }) });
    ball.parse(output);
  },
  async a_tool_that_must_be_called_is_called() {
    const thrown = [];
    const tools = {
      throw: tool({ description: "Throws a ball", inputSchema: ball, execute: (input) => thrown.push(ball.parse(input)) }),
    };
    const options = { model, prompt, tools, toolChoice: "required", stopWhen: stepCountIs(1) };
    await generateText(options);
    for await (const _ of streamText(options).fullStream);
    assert.equal(thrown.length, 2);
  },
  async what_the_server_refuses_is_told() {
    const wrong = generateText({ model, prompt, temperature: -1, maxRetries: 0 });
    await assert.rejects(wrong, /temperature/);
  },
});
