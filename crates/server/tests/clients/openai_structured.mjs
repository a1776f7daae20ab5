// The official OpenAI client for Node with replies of a given form: JSON schemas and forced tools.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { BASE, KEY, MODEL, run } from "./common.mjs";

const client = new OpenAI({ baseURL: `${BASE}/v1`, apiKey: KEY, maxRetries: 0, timeout: 60_000 });

// Small enough that every text of it ends.
const SCHEMA = {
  type: "object",
  properties: { colour: { enum: ["red", "green", "blue"] }, new: { type: "boolean" } },
  required: ["colour", "new"],
  additionalProperties: false,
};
const FORMAT = { type: "json_schema", json_schema: { name: "ball", strict: true, schema: SCHEMA } };
const CHAT = {
  model: MODEL,
  messages: [{ role: "user", content: "Tom had a ball. What was it like?" }],
  max_completion_tokens: 120,
  temperature: 0,
};
const TOOLS = [
  {
    type: "function",
    function: {
      name: "weather",
      parameters: {
        type: "object",
        properties: { city: { enum: ["Rome", "Oslo"] } },
        required: ["city"],
        additionalProperties: false,
      },
    },
  },
];

const chat = (more = {}) => client.chat.completions.create({ ...CHAT, ...more });

function checkBall(text) {
  const ball = JSON.parse(text);
  assert.deepEqual(Object.keys(ball).sort(), ["colour", "new"]);
  assert.ok(["red", "green", "blue"].includes(ball.colour));
  assert.equal(typeof ball.new, "boolean");
}

await run({
  async a_schema_is_kept_whole_and_in_a_stream() {
    const choice = (await chat({ response_format: FORMAT })).choices[0];
    assert.equal(choice.finish_reason, "stop");
    checkBall(choice.message.content);
    let text = "";
    for await (const chunk of await chat({ response_format: FORMAT, stream: true })) {
      text += chunk.choices[0]?.delta.content ?? "";
    }
    assert.equal(text, choice.message.content);
  },

  async every_choice_keeps_it() {
    const reply = await chat({ response_format: FORMAT, n: 3, temperature: 1.2, seed: 5 });
    for (const choice of reply.choices) checkBall(choice.message.content);
  },

  async a_response_keeps_a_schema() {
    const format = { type: "json_schema", name: "ball", schema: SCHEMA, strict: true };
    const ask = { model: MODEL, input: "Tom had a ball.", max_output_tokens: 120, text: { format } };
    checkBall((await client.responses.create(ask)).output_text);
  },

  async a_tool_is_called_when_it_must_be() {
    for (const choice of ["required", { type: "function", function: { name: "weather" } }]) {
      const ask = { tools: TOOLS, tool_choice: choice, parallel_tool_calls: false };
      const answer = (await chat(ask)).choices[0];
      assert.equal(answer.finish_reason, "tool_calls");
      const [call] = answer.message.tool_calls;
      assert.equal(call.function.name, "weather");
      assert.ok(["Rome", "Oslo"].includes(JSON.parse(call.function.arguments).city));
      const stream = client.chat.completions.stream({ ...CHAT, ...ask });
      const final = await stream.finalChatCompletion();
      assert.equal(final.choices[0].message.tool_calls[0].function.arguments, call.function.arguments);
    }
  },

  async tools_are_run_until_an_answer_comes() {
    const called = [];
    const tools = [{ ...TOOLS[0], function: { ...TOOLS[0].function, function: (city) => called.push(city) && "30" } }];
    const ask = { ...CHAT, tools, tool_choice: { type: "function", function: { name: "weather" } } };
    await client.chat.completions.runTools({ ...ask, parallel_tool_calls: false }).done();
    assert.equal(called.length, 1);
  },

  async what_cannot_be_kept_is_refused() {
    const broken = { type: "json_schema", json_schema: { name: "x", schema: { type: "no such type" } } };
    await assert.rejects(chat({ response_format: broken }), OpenAI.BadRequestError);
    await assert.rejects(chat({ tool_choice: "required" }), OpenAI.BadRequestError);
  },
});
