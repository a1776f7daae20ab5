// One answer as it comes: OpenAI's chat completions, with where each token came from.

import type { OriginStep } from "../model/origins";
import { request, ServerError } from "./http";
import { events } from "./sse";

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  prompt_tokens_details?: { cached_tokens?: number };
  speculation?: {
    steps: number;
    drafted: number;
    accepted: number;
    mean_acceptance_length: number;
    ms_saved: number;
  };
}

/** A piece of a tool call; those with the same index belong together. */
export interface ToolCallDelta {
  index: number;
  id?: string;
  function?: { name?: string; arguments?: string };
}

/** What arrived. */
export interface ChatDelta {
  content: string;
  reasoning: string;
  toolCalls: ToolCallDelta[];
  steps: OriginStep[];
  finish: string | null;
  usage: Usage | null;
}

interface Chunk {
  error?: { message: string; param?: string | null };
  usage?: Usage | null;
  choices?: {
    delta?: {
      content?: string | null;
      reasoning_content?: string | null;
      reasoning?: string | null;
      tool_calls?: ToolCallDelta[];
    };
    token_origins?: OriginStep[] | null;
    finish_reason?: string | null;
  }[];
}

/** Asks for an answer. It ends early when `signal` does, which the server takes as a cancellation. */
export async function* chat(
  body: Record<string, unknown>,
  requestId: string,
  signal: AbortSignal,
): AsyncGenerator<ChatDelta> {
  const reply = await request("v1/chat/completions", {
    method: "POST",
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    headers: { "x-request-id": requestId },
    signal,
  });
  if (reply.body === null) throw new ServerError("The server sent no body.", reply.status, null);
  for await (const { data } of events(reply.body)) {
    if (data === "[DONE]") return;
    yield deltaOf(JSON.parse(data) as Chunk);
  }
  throw new ServerError("The connection ended before the answer did.", 0, null);
}

/** What a chunk brings. */
export function deltaOf(chunk: Chunk): ChatDelta {
  if (chunk.error !== undefined) throw new ServerError(chunk.error.message, 500, chunk.error.param ?? null);
  const choice = chunk.choices?.[0];
  const delta = choice?.delta;
  return {
    content: delta?.content ?? "",
    reasoning: delta?.reasoning_content ?? delta?.reasoning ?? "",
    toolCalls: delta?.tool_calls ?? [],
    steps: choice?.token_origins ?? [],
    finish: choice?.finish_reason ?? null,
    usage: chunk.usage ?? null,
  };
}
