// Code in parts.

import assert from "node:assert/strict";
import { test } from "node:test";
import { highlight } from "../../src/model/highlight";

const joined = (code: string, language: string) =>
  highlight(code, language)
    .map(({ text }) => text)
    .join("");

test("the parts of highlighted code joined are the code", () => {
  const code = 'fn main() {\n    println!("<b>{}</b>", 1 + 2); // &amp;\n}\n';
  for (const language of ["rust", "python", "js", "html", "", "no-such-language"]) {
    assert.equal(joined(code, language), code, language);
  }
});

test("keywords are told apart, by names that people write", () => {
  assert.ok(highlight("fn main() {}", "rs").some(({ text, kind }) => text === "fn" && kind === "hljs-keyword"));
});

test("long code is not highlighted again with every token", () => {
  assert.equal(highlight("let a = 1;\n".repeat(5000), "rust").length, 1);
});
