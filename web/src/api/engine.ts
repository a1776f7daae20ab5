// What the server tells of its engine: its state, its steps as they run, its requests.

import { getJson, request } from "./http";
import { events } from "./sse";

/** Begin and end, in nanoseconds of the engine's clock. */
export type Span = [number, number];

/** The phases of the host, in their order. */
export const PHASES = ["plan", "submit", "wait", "collect", "emit"] as const;
export type Phase = (typeof PHASES)[number];

/** A step as it ran. */
export interface Step extends Record<Phase, Span> {
  step: number;
  rows: number;
  tokens: number;
  prompt_tokens: number;
  in_flight: number;
  drafted: number;
  accepted: number;
  device: Span;
  /** The last part of `device`, which made drafts. */
  draft_ns: number;
  /** How long the device had waited although there was work; null where there was none. */
  idle_ns: number | null;
}

export interface Gauges {
  now: number;
  interval_ms: number;
  tokens_per_second: number;
  steps_per_second: number;
  time_to_first_token_ms: number | null;
  running: number;
  waiting: number;
  slots: number;
  blocks: { used: number; total: number };
  snapshots: { used: number; total: number };
  prefix_hit_rate: number | null;
  device_busy: number;
  device_idle: number;
  drafts: { drafted: number; accepted: number; by_position: { drafted: number; accepted: number }[] };
}

export interface Feature {
  name: string;
  state: string;
  reason: string;
}

export interface Engine {
  version: string;
  uptime_seconds: number;
  model: { name: string; names: string[]; source: string; max_model_len: number; chat: boolean };
  device: { name: string; description: string };
  features: Feature[];
  memory: Record<string, number>;
  limits: Record<string, number | null>;
  speculation: { configuration: { summary: string; neural: string | null; methods: string[] } };
  /** What this page should ask for where the person says nothing, and who says so. */
  sampling: { page: Record<string, { value: unknown; source: string }> };
}

export interface RunningRequest {
  id: string;
  path: string;
  state: "running" | "waiting";
  age_ms: number;
  first_token_ms: number | null;
  prompt_tokens: number;
  prompt_tokens_done: number;
  generated_tokens: number;
  max_tokens: number;
}

export interface Requests {
  requests: RunningRequest[];
  others: { running: number; waiting: number };
}

export const getEngine = () => getJson<Engine>("v1/engine");
export const getRequests = () => getJson<Requests>("v1/engine/requests");
export const getDescription = () => getJson<unknown>("openapi.json");

export async function cancelRequest(id: string): Promise<void> {
  await request(`v1/engine/requests/${encodeURIComponent(id)}`, { method: "DELETE" });
}

/** The recorded steps as a file for Perfetto or chrome://tracing. */
export async function getTrace(): Promise<Blob> {
  return (await request("v1/engine/trace")).blob();
}

export interface Listener {
  steps(steps: Step[], lost: number): void;
  gauges(gauges: Gauges): void;
}

/** Follows the engine until the connection ends or `signal` does. */
export async function follow(listener: Listener, signal: AbortSignal): Promise<void> {
  const reply = await request("v1/engine/events", { signal });
  if (reply.body === null) return;
  for await (const { event, data } of events(reply.body)) {
    if (event === "steps") {
      const { steps, lost } = JSON.parse(data) as { steps: Step[]; lost: number };
      listener.steps(steps, lost);
    } else if (event === "gauges") {
      listener.gauges(JSON.parse(data) as Gauges);
    }
  }
}
