// Branches of conversations.

import assert from "node:assert/strict";
import { test } from "node:test";
import { NO_SETTINGS } from "../../src/model/settings";
import { surplus } from "../../src/model/store";
import {
  append,
  type Conversation,
  change,
  children,
  type Message,
  path,
  pathTo,
  place,
  settled,
  titleOf,
  turn,
  unlike,
} from "../../src/model/tree";

const empty: Conversation = {
  id: "c",
  title: "t",
  named: false,
  created: 0,
  updated: 0,
  settings: NO_SETTINGS,
  messages: [],
  chosen: {},
};

const message = (id: string, parent: string | null, role: Message["role"] = "user"): Message => ({
  id,
  parent,
  role,
  content: id,
});

const ids = (messages: Message[]) => messages.map(({ id }) => id).join(" ");

/** A question with two answers, the first of which was followed up; and the question in other words, with an answer. */
function grown(): Conversation {
  const order: [string, string | null][] = [
    ["q", null],
    ["a", "q"],
    ["q2", "a"],
    ["b", "q"],
    ["other", null],
    ["o", "other"],
  ];
  return order.reduce((tree, [id, parent]) => append(tree, message(id, parent)), empty);
}

test("what is added last is shown", () => {
  assert.equal(ids(path(grown())), "other o");
});

test("a retry is a sibling and what followed the first answer comes back with it", () => {
  const first = turn(grown(), "other", -1);
  assert.equal(ids(path(first)), "q b");
  assert.equal(ids(path(turn(first, "b", -1))), "q a q2");
  assert.equal(ids(path(turn(turn(turn(first, "b", -1), "q", 1), "other", -1))), "q a q2");
});

test("turning stops at the ends and changes nothing else", () => {
  const tree = grown();
  assert.equal(turn(tree, "other", 1), tree);
  assert.equal(turn(tree, "nothing", 1), tree);
});

test("places count siblings", () => {
  assert.deepEqual(place(grown(), "b"), { index: 1, count: 2 });
  assert.deepEqual(place(grown(), "q2"), { index: 0, count: 1 });
});

test("a request gets the messages before it and none of their siblings", () => {
  assert.equal(ids(pathTo(grown(), "q2")), "q a q2");
  assert.equal(ids(children(grown(), "q")), "a b");
});

test("a change leaves the old conversation as it is", () => {
  const tree = grown();
  const changed = change(tree, "a", { content: "new" });
  assert.equal(tree.messages[1]?.content, "a");
  assert.equal(changed.messages[1]?.content, "new");
  assert.equal(changed.messages[0], tree.messages[0]);
});

test("what was under way when the page was closed was stopped", () => {
  const answer = { state: "streaming", twin: { state: "streaming" } } as unknown as NonNullable<Message["answer"]>;
  const open = append(empty, { ...message("a", null, "assistant"), answer });
  const loaded = settled(open).messages[0]?.answer;
  assert.equal(loaded?.state, "stopped");
  assert.equal(loaded?.twin, null);
});

test("another answer is asked for with the next seed, unless the request is another anyway", () => {
  type Answer = NonNullable<Message["answer"]>;
  const made = (request: Record<string, unknown>, state: Answer["state"] = "done"): Message => ({
    ...message("a", "q", "assistant"),
    answer: { state, request } as Answer,
  });
  const request = { seed: 7, top_k: 40 };
  assert.equal(unlike(request, []), request);
  assert.equal(unlike(request, [made({ seed: 7, top_k: 1 })]), request);
  assert.equal(unlike(request, [made(request, "failed")]), request);
  assert.deepEqual(unlike(request, [made(request, "stopped")]), { seed: 8, top_k: 40 });
  assert.deepEqual(unlike(request, [made({ seed: 8, top_k: 40 }), made(request)]), { seed: 9, top_k: 40 });
  const most = { seed: Number.MAX_SAFE_INTEGER + 1 };
  assert.deepEqual(unlike(most, [made(most)]), { seed: 0 });
});

test("titles are one short line", () => {
  assert.equal(titleOf("  a\n b "), "a b");
  assert.equal(titleOf("word ".repeat(40)).length, 48);
});

test("only so many conversations are kept", () => {
  const many = Array.from({ length: 203 }, (_, index) => ({ ...empty, id: String(index) }));
  assert.deepEqual(
    surplus(many).map(({ id }) => id),
    ["200", "201", "202"],
  );
});
