// Has messages answered: asks the server and writes what comes into the conversation, once per frame.

import { newId, update } from "./actions";
import { type ChatDelta, chat } from "./api/chat";
import {
  type Answer,
  append,
  change,
  changeAnswer,
  children,
  find,
  type Message,
  pathTo,
  type ToolCall,
  unlike,
} from "./model/tree";
import { conversations, engine, fields, running, tell, twins } from "./state";

/** A seed for an answer whose person gives none: it is always sent, so that the answer can be had again. */
const seedOf = () => Math.floor(Math.random() * 2 ** 32);

/** A message as the server takes it. */
function wire(message: Message): Record<string, unknown> {
  if (message.role === "tool") return { role: "tool", tool_call_id: message.toolCallId, content: message.content };
  const calls = message.answer?.toolCalls ?? [];
  if (calls.length === 0) return { role: message.role, content: message.content };
  const functions = calls.map(({ id, name, arguments: text }) => ({
    id,
    type: "function",
    function: { name, arguments: text },
  }));
  return { role: message.role, content: message.content || null, tool_calls: functions };
}

/** What suits the model, which is not what a request gets that says nothing. */
function suggested(): Record<string, unknown> {
  const known = Object.entries(engine.value?.sampling.page ?? {});
  return Object.fromEntries(known.map(([name, { value }]) => [name, value]));
}

/** What to ask for an answer to the last of some messages. */
function bodyFor(messages: readonly Message[], system: string): Record<string, unknown> {
  const model = engine.value?.model.name;
  return {
    ...(model === undefined ? {} : { model }),
    messages: [...(system.trim() === "" ? [] : [{ role: "system", content: system }]), ...messages.map(wire)],
    seed: seedOf(),
    ...suggested(),
    ...fields.value.body,
    return_token_origins: true,
  };
}

function emptyAnswer(request: Record<string, unknown>): Answer {
  return {
    state: "waiting",
    request,
    requestId: `page-${newId()}`,
    reasoning: "",
    toolCalls: [],
    steps: [],
    finish: null,
    error: null,
    usage: null,
    firstMs: null,
    totalMs: null,
    twin: null,
  };
}

/** Shows what has arrived once per frame, or less often where showing it takes long: keys and stops come first. */
class Frame {
  private waiting = 0;
  private rest = 0;

  constructor(private readonly show: () => void) {}

  soon(): void {
    if (this.waiting !== 0) return;
    this.waiting = setTimeout(() => this.frame(), this.rest) as unknown as number;
  }

  private frame(): void {
    // A hidden page has no frames.
    if (document.visibilityState === "hidden") this.run();
    else requestAnimationFrame(() => this.run());
  }

  private run(): void {
    if (this.waiting === 0) return;
    this.waiting = 0;
    const begun = performance.now();
    this.show();
    // Elements change behind this; then the time that it took is known.
    setTimeout(() => {
      this.rest = 2 * (performance.now() - begun);
    });
  }

  /** Nothing more comes, or what comes is shown by other means. */
  end(): void {
    clearTimeout(this.waiting);
    this.waiting = 0;
  }
}

function addCalls(calls: ToolCall[], delta: ChatDelta): void {
  for (const piece of delta.toolCalls) {
    calls[piece.index] ??= { id: "", name: "", arguments: "" };
    const call = calls[piece.index] as ToolCall;
    call.id ||= piece.id ?? "";
    call.name += piece.function?.name ?? "";
    call.arguments += piece.function?.arguments ?? "";
  }
}

/** Marks a message as being written until the work is over. */
async function whileRunning(id: string, work: (signal: AbortSignal) => Promise<void>): Promise<void> {
  const controller = new AbortController();
  running.value = new Map(running.value).set(id, controller);
  try {
    await work(controller.signal);
  } finally {
    const rest = new Map(running.value);
    rest.delete(id);
    running.value = rest;
  }
}

const messageOf = (error: unknown) => (error instanceof Error ? error.message : String(error));

/** Answers a message with a new one below it. */
export async function writeAnswer(conversationId: string, parent: string): Promise<void> {
  const conversation = conversations.value.find(({ id }) => id === conversationId);
  if (conversation === undefined) return;
  const body = bodyFor(pathTo(conversation, parent), conversation.settings.system);
  const request = unlike(body, children(conversation, parent));
  const answer = emptyAnswer(request);
  const id = newId();
  update(conversationId, (old) => append(old, { id, parent, role: "assistant", content: "", answer }));
  await whileRunning(id, (signal) => stream(conversationId, id, answer, signal));
  const ended = find(conversations.value.find((one) => one.id === conversationId) ?? conversation, id);
  if (twins.value && ended?.answer?.state === "done") await writeTwin(conversationId, id);
}

async function stream(conversationId: string, id: string, answer: Answer, signal: AbortSignal): Promise<void> {
  let content = "";
  const begun = performance.now();
  const changes: Partial<Answer> = { reasoning: "", toolCalls: [], steps: [] };
  const show = (keep: boolean) => {
    const copy = {
      ...changes,
      steps: [...(changes.steps ?? [])],
      toolCalls: (changes.toolCalls ?? []).map((c) => ({ ...c })),
    };
    update(conversationId, (old) => changeAnswer(change(old, id, { content }), id, copy), keep);
  };
  const frame = new Frame(() => show(false));
  try {
    for await (const delta of chat(answer.request, answer.requestId, signal)) {
      content += delta.content;
      changes.reasoning += delta.reasoning;
      changes.steps?.push(...delta.steps);
      addCalls(changes.toolCalls ?? [], delta);
      if (delta.usage !== null) changes.usage = delta.usage;
      if (delta.finish !== null) changes.finish = delta.finish;
      const any = delta.content !== "" || delta.reasoning !== "" || delta.toolCalls.length > 0;
      if (any && changes.firstMs === undefined) changes.firstMs = performance.now() - begun;
      if (any) changes.state = "streaming";
      frame.soon();
    }
    changes.state = changes.finish === "abort" ? "stopped" : "done";
  } catch (error) {
    changes.state = signal.aborted ? "stopped" : "failed";
    if (!signal.aborted) changes.error = messageOf(error);
  }
  changes.totalMs = performance.now() - begun;
  frame.end();
  show(true);
}

/** Runs an answer's request with the same seed and no drafts, beside it. */
export async function writeTwin(conversationId: string, id: string): Promise<void> {
  const conversation = conversations.value.find((one) => one.id === conversationId);
  const answer = conversation === undefined ? undefined : find(conversation, id)?.answer;
  if (answer === undefined || running.value.has(id)) return;
  let text = "";
  const begun = performance.now();
  const set = (twin: Partial<NonNullable<Answer["twin"]>>, keep: boolean) => {
    const full = { state: "streaming" as const, text, error: null, tokens: null, totalMs: null, ...twin };
    update(conversationId, (old) => changeAnswer(old, id, { twin: full }), keep);
  };
  const frame = new Frame(() => set({}, false));
  const body = { ...answer.request, speculation: "off", return_token_origins: false };
  await whileRunning(id, async (signal) => {
    set({}, false);
    try {
      let tokens: number | null = null;
      for await (const delta of chat(body, `page-${newId()}`, signal)) {
        text += delta.content + delta.toolCalls.map((call) => call.function?.arguments ?? "").join("");
        tokens = delta.usage?.completion_tokens ?? tokens;
        frame.soon();
      }
      frame.end();
      set({ state: "done", tokens, totalMs: performance.now() - begun }, true);
    } catch (error) {
      frame.end();
      if (signal.aborted) tell("The run without drafts was stopped.");
      set({ state: "failed", error: signal.aborted ? "stopped" : messageOf(error) }, true);
    }
  });
}
