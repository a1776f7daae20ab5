// Runs the script of a report on a document that is just enough for it, and prints what it made of it as JSON.
// Usage: node page.mjs REPORT.html
import { readFileSync } from "node:fs";
import { runInNewContext } from "node:vm";

class Node {
  constructor(name) {
    Object.assign(this, { name, attributes: {}, children: [], style: {} });
  }
  setAttribute(key, value) { this.attributes[key] = String(value); }
  append(...nodes) { this.children.push(...nodes); }
  replaceChildren(...nodes) { this.children = nodes; }
  addEventListener(_, listener) { (this.listeners ??= []).push(listener); }
  getBoundingClientRect() { return { left: 0, width: 480 }; }
  get textContent() { return this.children.map((child) => (child instanceof Node ? child.textContent : String(child))).join(" "); }
  set textContent(text) { this.children = [String(text)]; }
  *all() {
    yield this;
    for (const child of this.children) if (child instanceof Node) yield* child.all();
  }
}

const page = readFileSync(process.argv[2], "utf8");
const scripts = [...page.matchAll(/<script([^>]*)>([\s\S]*?)<\/script>/g)];
if (scripts.length !== 2) throw new Error(`${scripts.length} scripts`);
const [data, code] = scripts;
const elements = { report: new Node("main"), data: new Node("script") };
elements.data.textContent = data[2];
const document = {
  getElementById: (id) => elements[id],
  createElement: (name) => new Node(name),
  createElementNS: (_, name) => new Node(name),
};
runInNewContext(code[2], { document, Node });

const nodes = [...elements.report.all()];
const plots = nodes.filter((node) => node.name === "svg");
// The pointer goes over every plot: what is read there must make sense as well.
for (const node of nodes) {
  for (const listener of node.listeners ?? []) for (const clientX of [0, 100, 300, 480]) listener({ clientX });
}
const inPlots = plots.flatMap((plot) => [...plot.all()]);
process.stdout.write(JSON.stringify({
  plots: plots.length,
  shapes: inPlots.length,
  attributes: inPlots.flatMap((node) => Object.values(node.attributes)).join(" "),
  text: elements.report.textContent,
}));
