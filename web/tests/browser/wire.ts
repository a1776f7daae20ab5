// Stands between the page and the server and writes down what goes over the wire: not every browser tells its tests.

import { createServer, type IncomingMessage, request, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

/** A question of the page's and what it got for an answer so far. */
export interface Exchange {
  path: string;
  // biome-ignore lint/suspicious/noExplicitAny: a body is what a test says it is
  body: any;
  reply: string;
  /** `cut`: the page went away before the end. */
  state: "open" | "whole" | "cut";
}

export interface Wire {
  address: string;
  exchanges: Exchange[];
  stop(): void;
}

/** Hands everything on, as it comes, and keeps it. */
export async function wire(server: string): Promise<Wire> {
  const exchanges: Exchange[] = [];
  const handOn = async (incoming: IncomingMessage, reply: ServerResponse) => {
    const body = await text(incoming);
    const exchange: Exchange = { path: incoming.url ?? "", body: parsed(body), reply: "", state: "open" };
    exchanges.push(exchange);
    const { method, headers } = incoming;
    const outgoing = request(new URL(incoming.url ?? "/", server), { method: method ?? "GET", headers }, (answer) => {
      reply.writeHead(answer.statusCode ?? 502, answer.headers);
      answer.on("data", (piece: Buffer) => {
        exchange.reply += piece.toString();
        reply.write(piece);
      });
      answer.on("end", () => reply.end());
    });
    outgoing.on("error", () => reply.destroy());
    reply.on("close", () => {
      exchange.state = reply.writableFinished ? "whole" : "cut";
      outgoing.destroy();
    });
    outgoing.end(body);
  };
  const between = createServer((incoming, reply) => void handOn(incoming, reply).catch(() => reply.destroy()));
  await new Promise<void>((resolve) => between.listen(0, "127.0.0.1", resolve));
  const stop = () => {
    between.close();
    between.closeAllConnections();
  };
  return { address: `http://127.0.0.1:${(between.address() as AddressInfo).port}`, exchanges, stop };
}

async function text(incoming: IncomingMessage): Promise<string> {
  let all = "";
  for await (const piece of incoming) all += piece;
  return all;
}

function parsed(body: string): unknown {
  try {
    return JSON.parse(body);
  } catch {
    return null;
  }
}
