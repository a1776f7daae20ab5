// Makes the files of the page that the server embeds. The same sources and packages give the same bytes.

import { createHash } from "node:crypto";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

/** The folder of the sources. */
export const root = join(dirname(fileURLToPath(import.meta.url)), "..");

/** What the page may weigh when it is sent, in bytes. */
export const LIMIT = 150 * 1024;

/** Compiles an entry point and what it imports to one minified text. */
async function bundle(entry) {
  const result = await build({
    absWorkingDir: root,
    entryPoints: [entry],
    bundle: true,
    minify: true,
    write: false,
    metafile: true,
    format: "iife",
    target: ["es2022", "chrome111", "firefox115", "safari16.4"],
    charset: "utf8",
    legalComments: "none",
    jsx: "automatic",
    jsxImportSource: "preact",
  });
  const [file] = result.outputFiles;
  return { text: file.text.trim(), inputs: Object.keys(result.metafile.inputs) };
}

/** The packages that files come from. */
function packages(inputs) {
  const names = inputs.map((path) => /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(path)?.[1]);
  return [...new Set(names.filter(Boolean))].sort();
}

async function licence(name) {
  const folder = join(root, "node_modules", name);
  const { version, license } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
  for (const file of ["LICENSE", "license", "LICENSE.md", "LICENSE.txt"]) {
    const text = await readFile(join(folder, file), "utf8").catch(() => null);
    if (text !== null) return `${name} ${version} (${license})\n\n${text.replaceAll("\r\n", "\n").trim()}\n`;
  }
  throw new Error(`${name} has no licence file`);
}

const version = (text) => createHash("sha256").update(text).digest("hex").slice(0, 16);

/** What the server embeds: every file as it is and compressed. */
export async function make(folder) {
  const [script, style, html, icon] = await Promise.all([
    bundle("src/main.tsx"),
    bundle("src/style/index.css"),
    readFile(join(root, "src/index.html"), "utf8"),
    readFile(join(root, "src/icon.svg"), "utf8"),
  ]);
  const licences = await Promise.all(packages([...script.inputs, ...style.inputs]).map(licence));
  const named = { "app.js": script.text, "app.css": style.text, "icon.svg": icon };
  const page = html.replaceAll(/\n\s*/g, "").replaceAll(/(\w+\.\w+)\?v=/g, (link, name) => link + version(named[name]));
  const files = { ...named, "index.html": page, "licences.txt": licences.join("\n----\n\n") };
  await mkdir(folder, { recursive: true });
  const sizes = {};
  for (const [name, text] of Object.entries(files)) {
    const compressed = gzipSync(text, { level: 9 });
    await writeFile(join(folder, name), text);
    await writeFile(join(folder, `${name}.gz`), compressed);
    sizes[name] = { bytes: Buffer.byteLength(text), compressed: compressed.length };
  }
  return sizes;
}

/** What a browser gets for the page, in bytes as sent. */
export function weight(sizes) {
  const sent = Object.entries(sizes).filter(([name]) => name !== "licences.txt");
  return sent.reduce((sum, [, size]) => sum + size.compressed, 0);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const sizes = await make(process.argv[2] ?? join(root, "dist"));
  console.table(sizes);
  console.log(`${weight(sizes)} bytes compressed in all, at most ${LIMIT}`);
}
