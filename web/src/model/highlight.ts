// Code as stretches of text with what each is. Only text and class names come out, never markup.

import bash from "highlight.js/lib/languages/bash";
import c from "highlight.js/lib/languages/c";
import cpp from "highlight.js/lib/languages/cpp";
import css from "highlight.js/lib/languages/css";
import diff from "highlight.js/lib/languages/diff";
import go from "highlight.js/lib/languages/go";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import python from "highlight.js/lib/languages/python";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";
import { createLowlight } from "lowlight";

const lowlight = createLowlight({
  bash,
  c,
  cpp,
  css,
  diff,
  go,
  java,
  javascript,
  json,
  python,
  rust,
  sql,
  typescript,
  xml,
  yaml,
});

/** Longer code is shown as it is: it would be highlighted anew with every token. */
const LONGEST = 20_000;

export interface CodePart {
  text: string;
  kind: string;
}

type Node = { type: string; value?: string; children?: Node[]; properties?: { className?: unknown } };

/** Cuts code into parts; their texts joined are the code. */
export function highlight(code: string, language: string): CodePart[] {
  const name = language.toLowerCase();
  if (code.length > LONGEST || !lowlight.registered(name)) return [{ text: code, kind: "" }];
  const parts: CodePart[] = [];
  collect(lowlight.highlight(name, code) as Node, "", parts);
  return parts;
}

function collect(node: Node, kind: string, parts: CodePart[]): void {
  if (node.type === "text" && node.value) parts.push({ text: node.value, kind });
  const own = node.properties?.className;
  const inner = Array.isArray(own) ? own.join(" ") : kind;
  for (const child of node.children ?? []) collect(child, inner, parts);
}
