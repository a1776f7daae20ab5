// Tokens, where they came from, and where they are in the text.

import assert from "node:assert/strict";
import { test } from "node:test";
import { countOrigins, type Origin, type OriginStep, pieceAt, pieces, shiftOf } from "../../src/model/origins";
import { Painter } from "../../src/model/painter";

function step(source: Origin | null, drafts: string[], sampled: string | null, rejected: string[] = []): OriginStep {
  const token = (text: string, origin: Origin) => ({ id: 1, text, origin });
  const tokens = drafts.map((text) => token(text, source ?? "sampled"));
  return {
    kind: "decode",
    source,
    drafted: drafts.length + rejected.length,
    accepted: drafts.length,
    rejected: rejected.map((text) => ({ id: 2, text })),
    tokens: sampled === null ? tokens : [...tokens, token(sampled, "sampled")],
  };
}

const prefill: OriginStep = { ...step(null, [], "Once"), kind: "prefill" };
const steps = [prefill, step("ngram", [" upon", " a"], " time", [" day", ","]), step("neural", [","], " there")];

test("every token has the colour of its origin, its step and its place", () => {
  const all = pieces(steps);
  assert.deepEqual(
    all.map(({ text, origin, step, start }) => [text, origin, step, start]),
    [
      ["Once", "sampled", 0, 0],
      [" upon", "ngram", 1, 4],
      [" a", "ngram", 1, 9],
      [" time", "sampled", 1, 11],
      [",", "neural", 2, 16],
      [" there", "sampled", 2, 17],
    ],
  );
});

test("refused drafts are with the token that was chosen in their place", () => {
  const refused = pieces(steps).filter(({ rejected }) => rejected.length > 0);
  assert.deepEqual(
    refused.map(({ text, rejected }) => [text, rejected.map((draft) => draft.text)]),
    [[" time", [" day", ","]]],
  );
});

test("counts are those of usage.speculation, prefill aside", () => {
  const { tokens, steps: number, drafted, accepted, by } = countOrigins(steps);
  assert.deepEqual([tokens, number, drafted, accepted], [6, 2, 5, 3]);
  assert.deepEqual(by, { sampled: 3, ngram: 2, neural: 1, grammar: 0 });
});

test("a place of the text leads to its token, and to none where none is known", () => {
  const all = pieces(steps);
  assert.equal(pieceAt(all, 0)?.text, "Once");
  assert.equal(pieceAt(all, 10)?.text, " a");
  assert.equal(pieceAt(all, 22)?.text, " there");
  assert.equal(pieceAt(all, 23), null);
  assert.equal(pieceAt([], 0), null);
});

test("tokens without text are passed over", () => {
  const all = pieces([step(null, [], ""), step(null, [], "a"), step(null, [], ""), step(null, [], "b")]);
  assert.equal(pieceAt(all, 0)?.index, 1);
  assert.equal(pieceAt(all, 1)?.index, 3);
});

test("an answer is found behind its reasoning", () => {
  assert.equal(shiftOf("<think>no</think>Yes", "Yes"), 17);
  assert.equal(shiftOf("Yes", ""), 0);
  assert.equal(shiftOf("other", "Yes"), 0);
});

/** What a painter makes of shown texts, as `text/index of its token`. */
function painted(source: string, tokens: string[], shown: string[]): string[][] {
  const painter = new Painter(source, pieces(tokens.map((text) => step(null, [], text))), 0);
  return shown.map((text) => painter.take(text).map((run) => `${run.text}/${run.piece?.index ?? "-"}`));
}

test("text is cut where its tokens are", () => {
  assert.deepEqual(painted("one two", ["one", " tw", "o"], ["one two"]), [["one/0", " tw/1", "o/2"]]);
});

test("marks of Markdown take their tokens with them and shift nothing", () => {
  const source = "**bold** and `code`";
  const tokens = ["**", "bold", "**", " and", " `", "code", "`"];
  assert.deepEqual(painted(source, tokens, ["bold", " and ", "code"]), [["bold/1"], [" and/3", " /4"], ["code/5"]]);
});

test("quotes over several lines are followed through their marks", () => {
  const source = "> one\n> two";
  const tokens = ["> ", "one", "\n", "> ", "two"];
  assert.deepEqual(painted(source, tokens, ["one\ntwo"]), [["one/1", "\n/2", "two/4"]]);
});

test("text that is not known yet has no colour", () => {
  assert.deepEqual(painted("one two", ["one"], ["one two"]), [["one/0", " two/-"]]);
});

test("characters beyond the first plane are not cut in half", () => {
  assert.deepEqual(painted("a😀b", ["a", "😀", "b"], ["a😀b"]), [["a/0", "😀/1", "b/2"]]);
});
