// For work on the page: builds it anew for every visit, and hands everything else to a server that runs.
//   node scripts/dev.mjs [http://127.0.0.1:8000] [port]

import { readFileSync } from "node:fs";
import { createServer, request } from "node:http";
import { extname, join } from "node:path";
import { make, root } from "./build.mjs";

const [server = "http://127.0.0.1:8000", port = "8001"] = process.argv.slice(2);
const folder = join(root, "node_modules/.cache/dev");
const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml" };
const FILES = ["index.html", "app.js", "app.css", "icon.svg", "licences.txt"];

createServer(async (incoming, reply) => {
  const name = new URL(incoming.url, server).pathname.slice(1) || "index.html";
  if (FILES.includes(name)) {
    if (name === "index.html") await make(folder);
    reply.setHeader("content-type", `${TYPES[extname(name)] ?? "text/plain"}; charset=utf-8`);
    reply.end(readFileSync(join(folder, name)));
    return;
  }
  const { method, headers } = incoming;
  const outgoing = request(new URL(incoming.url, server), { method, headers }, (answer) => {
    reply.writeHead(answer.statusCode ?? 502, answer.headers);
    answer.pipe(reply);
  });
  outgoing.on("error", () => reply.destroy());
  reply.on("close", () => outgoing.destroy());
  incoming.pipe(outgoing);
}).listen(Number(port), "127.0.0.1", () => console.log(`the page is at http://127.0.0.1:${port}/`));
