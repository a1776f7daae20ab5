// Two texts.

import assert from "node:assert/strict";
import { test } from "node:test";
import { around, compareTexts } from "../../src/model/compare";

test("equal texts are equal to the last character", () => {
  assert.deepEqual(compareTexts("abc", "abc", false), { equal: true, common: 3, partial: false });
});

test("the first difference is told", () => {
  assert.deepEqual(compareTexts("a red ball", "a rod ball", false), { equal: false, common: 3, partial: false });
});

test("a text that goes on is another text, unless one of them was stopped", () => {
  assert.equal(compareTexts("abc", "abcd", false).equal, false);
  assert.deepEqual(compareTexts("abc", "abcd", true), { equal: true, common: 3, partial: true });
  assert.equal(compareTexts("", "abcd", true).equal, false);
  assert.equal(compareTexts("abx", "abcd", true).equal, false);
});

test("a difference within a character is told in front of it", () => {
  assert.equal(compareTexts("a😀", "a😁", false).common, 1);
});

test("surroundings end where the texts do", () => {
  assert.deepEqual(around("abcdef", 2, 3), { before: "ab", after: "cde" });
});
