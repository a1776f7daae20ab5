// The official OpenAI client for Node: chat, completions and responses, streams, choices, tools, errors, cancelling.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { BASE, KEY, MODEL, run } from "./common.mjs";

const client = new OpenAI({ baseURL: `${BASE}/v1`, apiKey: KEY, maxRetries: 0, timeout: 60_000 });

const CHAT = {
  model: MODEL,
  messages: [
    { role: "system", content: "Be kind." },
    { role: "user", content: "Tell me a story." },
  ],
  max_completion_tokens: 24,
  temperature: 0,
};
const TEXT = { model: MODEL, prompt: "Once upon a time", max_tokens: 24, temperature: 0 };
const TOOLS = [
  {
    type: "function",
    function: {
      name: "weather",
      description: "How warm it is.",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    },
  },
];

const chat = (more = {}, options) => client.chat.completions.create({ ...CHAT, ...more }, options);
const complete = (more = {}, options) => client.completions.create({ ...TEXT, ...more }, options);
const content = (reply, index = 0) => reply.choices[index].message.content;

async function all(stream) {
  const chunks = [];
  for await (const chunk of await stream) chunks.push(chunk);
  return chunks;
}

/** The texts of the choices in chunks of chat or of completions. */
function texts(chunks) {
  const found = [];
  for (const choice of chunks.flatMap((chunk) => chunk.choices)) {
    found[choice.index] = (found[choice.index] ?? "") + (choice.text ?? choice.delta.content ?? "");
  }
  return found;
}

await run({
  async models_are_listed() {
    const ids = (await all(client.models.list())).map((model) => model.id);
    assert.ok(ids.includes(MODEL));
    assert.equal((await client.models.retrieve(MODEL)).id, MODEL);
  },

  async an_answer_is_whole() {
    const reply = await chat();
    assert.equal(reply.choices[0].finish_reason, "length");
    assert.ok(content(reply).length > 0);
    assert.equal(reply.usage.completion_tokens, 24);
    assert.equal(reply.usage.total_tokens, reply.usage.prompt_tokens + 24);
    assert.ok(reply.usage.speculation.steps > 0);
    assert.ok(reply._request_id);
  },

  async prompts_may_be_tokens_and_many() {
    const whole = (await complete()).choices[0].text;
    const several = await complete({ prompt: [TEXT.prompt, "The fox"], return_token_ids: true });
    assert.equal(several.choices[0].text, whole);
    assert.equal(several.choices.length, 2);
    const tokens = several.choices[0].prompt_token_ids;
    assert.equal((await complete({ prompt: tokens })).choices[0].text, whole);
  },

  async a_stream_of_chat_is_the_whole_answer() {
    const whole = await chat();
    const chunks = await all(chat({ stream: true, stream_options: { include_usage: true } }));
    assert.deepEqual(texts(chunks), [content(whole)]);
    assert.equal(chunks.at(-1).usage.total_tokens, whole.usage.total_tokens);
    assert.equal(chunks.filter((chunk) => chunk.usage).length, 1);
    assert.ok(chunks.some((chunk) => chunk.choices[0]?.finish_reason === "length"));
  },

  async a_stream_of_text_is_the_whole_text() {
    const whole = await complete();
    const chunks = await all(complete({ stream: true, stream_options: { include_usage: true } }));
    assert.deepEqual(texts(chunks), [whole.choices[0].text]);
    assert.equal(chunks.at(-1).usage.completion_tokens, 24);
  },

  async the_stream_helper_collects_the_answer() {
    const stream = client.chat.completions.stream(CHAT);
    let text = "";
    stream.on("content", (delta) => (text += delta));
    const final = await stream.finalChatCompletion();
    assert.equal(text, content(await chat()));
    assert.equal(content(final), text);
  },

  async a_response_streams_and_comes_whole() {
    const ask = { model: MODEL, input: "Tell me a story.", max_output_tokens: 24, temperature: 0 };
    const whole = await client.responses.create(ask);
    assert.equal(whole.status, "incomplete");
    assert.ok(whole.output_text.length > 0);
    const events = await all(client.responses.create({ ...ask, stream: true }));
    const deltas = events.filter((event) => event.type === "response.output_text.delta");
    assert.equal(deltas.map((event) => event.delta).join(""), whole.output_text);
    assert.equal(events.at(-1).type, "response.incomplete");
  },

  async log_probabilities_come_with_every_token() {
    const reply = await chat({ logprobs: true, top_logprobs: 2 });
    const tokens = reply.choices[0].logprobs.content;
    assert.equal(tokens.map((token) => token.token).join(""), content(reply));
    assert.ok(tokens.every((token) => token.logprob <= 0 && token.top_logprobs.length === 2));
    const text = await complete({ logprobs: 2, echo: true });
    assert.equal(text.choices[0].logprobs.tokens.join(""), text.choices[0].text);
  },

  async choices_differ_and_a_seed_repeats_them() {
    const ask = { n: 3, temperature: 1, seed: 7 };
    const found = (await chat(ask)).choices.map((choice) => choice.message.content);
    assert.equal(new Set(found).size, 3);
    assert.deepEqual(texts(await all(chat({ ...ask, stream: true }))), found);
    assert.ok(!found.includes(content(await chat({ temperature: 1, seed: 8 }))));
  },

  async a_text_ends_before_a_stop_string() {
    const whole = (await complete({ max_tokens: 60 })).choices[0].text;
    const stop = whole.slice(20, 26);
    const choice = (await complete({ max_tokens: 60, stop: [stop] })).choices[0];
    assert.equal(choice.finish_reason, "stop");
    assert.equal(choice.text, whole.slice(0, whole.indexOf(stop)));
    assert.deepEqual(texts(await all(complete({ max_tokens: 60, stop, stream: true }))), [choice.text]);
  },

  async a_conversation_with_a_tool_goes_on() {
    const call = { id: "c1", type: "function", function: { name: "weather", arguments: '{"city": "Rome"}' } };
    const messages = [
      { role: "user", content: [{ type: "text", text: "How warm is it in Rome?" }] },
      { role: "assistant", content: null, tool_calls: [call] },
      { role: "tool", tool_call_id: "c1", content: "30 degrees" },
    ];
    const ask = { tools: TOOLS, tool_choice: "auto" };
    const reply = await chat({ ...ask, messages });
    assert.equal(reply.choices[0].message.role, "assistant");
    const more = [...messages, reply.choices[0].message, { role: "user", content: "And tomorrow?" }];
    const longer = await chat({ ...ask, messages: more });
    assert.ok(longer.usage.prompt_tokens > reply.usage.prompt_tokens);
  },

  async errors_are_the_clients_own() {
    await assert.rejects(chat({ temperature: -1 }), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.equal(error.param, "temperature");
      assert.match(error.message, /`temperature` is -1/);
      return true;
    });
    await assert.rejects(complete({ prompt: "word ".repeat(2000) }), { code: "context_length_exceeded" });
    await assert.rejects(chat({ stream: true, max_completion_tokens: 0 }), OpenAI.BadRequestError);
    await assert.rejects(chat({ model: "gpt-9" }), OpenAI.NotFoundError);
    const stranger = new OpenAI({ baseURL: `${BASE}/v1`, apiKey: "wrong", maxRetries: 0 });
    await assert.rejects(stranger.chat.completions.create(CHAT), OpenAI.AuthenticationError);
  },

  async a_stream_can_be_left() {
    for (const ask of [chat, complete]) {
      let seen = 0;
      for await (const _ of await ask({ stream: true, max_tokens: 400, ignore_eos: true })) {
        if (++seen === 3) break;
      }
      assert.equal(seen, 3);
    }
    assert.ok(content(await chat()));
  },

  async a_request_can_be_cancelled() {
    for (const stream of [false, true]) {
      const controller = new AbortController();
      const reply = (async () => {
        const ask = { stream, max_tokens: 400, ignore_eos: true };
        const answer = await complete(ask, { signal: controller.signal });
        return stream ? all(answer) : answer;
      })();
      setTimeout(() => controller.abort(), 20);
      // A stream that is cut by its reader ends; a reply that is cut was none.
      if (stream) await reply.catch((error) => assert.ok(error instanceof OpenAI.APIUserAbortError));
      else await assert.rejects(reply, OpenAI.APIUserAbortError);
    }
    assert.ok(content(await chat()));
  },

  async many_can_ask_at_a_time() {
    const replies = await Promise.all(Array.from({ length: 6 }, () => chat()));
    assert.equal(new Set(replies.map((reply) => content(reply))).size, 1);
  },
});
