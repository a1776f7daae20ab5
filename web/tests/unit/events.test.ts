// Streams of events and chunks.

import assert from "node:assert/strict";
import { test } from "node:test";
import { deltaOf } from "../../src/api/chat";
import { EventParser, events } from "../../src/api/sse";

const stream = 'event: steps\ndata: {"a":1}\n\n: alive\n\ndata: one\ndata: two\r\n\r\ndata:[DONE]\n\n';
const expected = [
  { event: "steps", data: '{"a":1}' },
  { event: "message", data: "one\ntwo" },
  { event: "message", data: "[DONE]" },
];

test("events are the same however the stream is cut", () => {
  for (let size = 1; size <= stream.length; size += 1) {
    const parser = new EventParser();
    const found = [];
    for (let at = 0; at < stream.length; at += size) found.push(...parser.feed(stream.slice(at, at + size)));
    assert.deepEqual(found, expected, `pieces of ${size}`);
  }
});

test("characters that are cut between two pieces come out whole", async () => {
  const bytes = new TextEncoder().encode("data: 😀é\n\n");
  const body = new ReadableStream<Uint8Array>({
    start(controller) {
      for (const byte of bytes) controller.enqueue(Uint8Array.of(byte));
      controller.close();
    },
  });
  const found = [];
  for await (const event of events(body)) found.push(event.data);
  assert.deepEqual(found, ["😀é"]);
});

test("a stream without ends of events is refused and not kept", () => {
  const parser = new EventParser();
  assert.throws(() => {
    for (let piece = 0; piece < 20; piece += 1) parser.feed("x".repeat(1024 * 1024));
  }, /too long/);
});

test("chunks bring text, steps, calls, the end and the usage", () => {
  const step = { kind: "decode", source: null, drafted: 0, accepted: 0, rejected: [], tokens: [] } as const;
  const delta = deltaOf({
    choices: [
      {
        delta: { content: "a", reasoning_content: "b" },
        token_origins: [{ ...step, rejected: [], tokens: [] }],
        finish_reason: "stop",
      },
    ],
    usage: { prompt_tokens: 1, completion_tokens: 2 },
  });
  assert.deepEqual([delta.content, delta.reasoning, delta.steps.length, delta.finish], ["a", "b", 1, "stop"]);
  assert.equal(delta.usage?.completion_tokens, 2);
  assert.deepEqual(deltaOf({ choices: [], usage: null }).steps, []);
});

test("an error in the stream is an error", () => {
  assert.throws(() => deltaOf({ error: { message: "the engine has ended" } }), /the engine has ended/);
});
