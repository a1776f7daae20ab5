// Requests to the server that the page came from, with the key that it may want.

import { signal } from "@preact/signals";
import { recall, remember } from "../model/local";

/** The key to send; empty for none. */
export const apiKey = signal(recall("key") ?? "");

/** Whether the server has refused a request for want of a key. */
export const keyWanted = signal(false);

export function setKey(key: string): void {
  remember("key", key);
  apiKey.value = key;
  keyWanted.value = false;
}

/** What the server said against a request. */
export class ServerError extends Error {
  constructor(
    message: string,
    readonly status: number,
    /** The field of the request that is at fault, if it is one. */
    readonly param: string | null,
  ) {
    super(message);
  }
}

/** A reply with a good status; anything else is an error that says what the server said. */
export async function request(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  if (apiKey.value !== "") headers.set("authorization", `Bearer ${apiKey.value}`);
  if (init.body !== undefined) headers.set("content-type", "application/json");
  const reply = await fetch(path, { ...init, headers }).catch((cause: unknown) => {
    if (cause instanceof DOMException && cause.name === "AbortError") throw cause;
    throw new ServerError("The server cannot be reached.", 0, null);
  });
  if (reply.ok) return reply;
  if (reply.status === 401) keyWanted.value = true;
  throw await errorOf(reply);
}

async function errorOf(reply: Response): Promise<ServerError> {
  const text = await reply.text().catch(() => "");
  try {
    const { error } = JSON.parse(text) as { error: { message: string; param?: string | null } };
    return new ServerError(error.message, reply.status, error.param ?? null);
  } catch {
    return new ServerError(text.slice(0, 300) || `The server answered ${reply.status}.`, reply.status, null);
  }
}

/** A reply's JSON. */
export async function getJson<T>(path: string): Promise<T> {
  return (await (await request(path)).json()) as T;
}
