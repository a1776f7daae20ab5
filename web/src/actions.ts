// What a person can do with conversations.

import { batch } from "@preact/signals";
import { writeAnswer, writeTwin } from "./answering";
import { NO_SETTINGS, type Settings, withoutLent } from "./model/settings";
import { erase, loadAll, save, surplus } from "./model/store";
import {
  append,
  type Conversation,
  changeAnswer,
  find,
  type Message,
  path,
  settled,
  titleOf,
  turn,
} from "./model/tree";
import {
  busy,
  conversations,
  current,
  currentId,
  engine,
  fields,
  nextSettings,
  running,
  settings,
  tell,
} from "./state";

export const newId = () => crypto.randomUUID?.() ?? `${Date.now()}-${Math.random().toString(36).slice(2)}`;

/** Puts a conversation, changed or new, in its place and keeps it in the browser. */
export function put(conversation: Conversation): void {
  const rest = conversations.value.filter(({ id }) => id !== conversation.id);
  const all = [conversation, ...rest].sort((left, right) => right.updated - left.updated);
  const gone = surplus(all);
  conversations.value = all.slice(0, all.length - gone.length);
  void save(conversation).catch(() => undefined);
  for (const { id } of gone) void erase(id).catch(() => undefined);
}

/** Changes a conversation that may have gone in the meantime. */
export function update(id: string, how: (conversation: Conversation) => Conversation, keep = true): void {
  const conversation = conversations.value.find((one) => one.id === id);
  if (conversation === undefined) return;
  const changed = how(conversation);
  if (keep) put(changed);
  else conversations.value = conversations.value.map((one) => (one.id === id ? changed : one));
}

export async function restore(): Promise<void> {
  try {
    conversations.value = (await loadAll()).map(settled);
  } catch {
    tell("This browser keeps no conversations here; they last as long as the page.");
  }
}

export function changeSettings(changes: Partial<Settings>): void {
  const conversation = current.value;
  if (conversation === null) nextSettings.value = { ...nextSettings.value, ...changes };
  else put({ ...conversation, settings: { ...conversation.settings, ...changes } });
}

/** Begins with an empty page, and the settings that were used last, less those of a suggestion. */
export function begin(): void {
  batch(() => {
    const before = current.value;
    if (before !== null) nextSettings.value = withoutLent(before.settings, before.lent ?? {});
    currentId.value = null;
  });
}

/** Begins a conversation with a suggestion, and with settings for it alone. */
export function suggest(text: string, lent: Partial<Settings>): void {
  if (!free()) return;
  const conversation = created(text);
  batch(() => {
    put({ ...conversation, settings: { ...conversation.settings, ...lent }, lent });
    currentId.value = conversation.id;
    send(text);
  });
}

function created(text: string): Conversation {
  const now = Date.now();
  return {
    id: newId(),
    title: titleOf(text),
    named: false,
    created: now,
    updated: now,
    settings: settings.value,
    messages: [],
    chosen: {},
  };
}

/** What is wrong with the settings; null if nothing is. */
export function obstacle(): string | null {
  const wrong = Object.entries(fields.value.errors)[0];
  return wrong === undefined ? null : `${wrong[0]}: ${wrong[1]}`;
}

/** Whether something can be sent now; says why not. */
function free(): boolean {
  const reason = busy.value ? "An answer is being written." : obstacle();
  if (reason !== null) tell(reason);
  return reason === null;
}

/** Says something at the end of what is shown, and has it answered. */
export function send(text: string, toolCallId?: string): void {
  if (!free()) return;
  const conversation = current.value ?? created(text);
  const last = path(conversation).at(-1);
  const role = toolCallId === undefined ? "user" : "tool";
  const message: Message = { id: newId(), parent: last?.id ?? null, role, content: text };
  if (toolCallId !== undefined) message.toolCallId = toolCallId;
  batch(() => {
    put({ ...append(conversation, message), updated: Date.now() });
    currentId.value = conversation.id;
    void writeAnswer(conversation.id, message.id);
  });
}

/** Another answer to the same message. */
export function retry(id: string): void {
  const conversation = current.value;
  const answer = conversation === null ? undefined : find(conversation, id);
  if (conversation !== null && answer?.parent != null && free()) void writeAnswer(conversation.id, answer.parent);
}

/** Says a thing otherwise; what followed it stays with what was said. */
export function edit(id: string, text: string): void {
  const conversation = current.value;
  const message = conversation === null ? undefined : find(conversation, id);
  if (conversation === null || message === undefined || !free()) return;
  const edited: Message = { ...message, id: newId(), content: text };
  batch(() => {
    put({ ...append(conversation, edited), updated: Date.now() });
    void writeAnswer(conversation.id, edited.id);
  });
}

/** Shows the sibling before or after a message. */
export function turnTo(id: string, by: number): void {
  if (current.value !== null) put(turn(current.value, id, by));
}

/** Runs an answer's request again without drafts. */
export function compare(id: string): void {
  if (current.value !== null) void writeTwin(current.value.id, id);
}

/** Shows an answer alone again. */
export function forget(id: string): void {
  if (current.value !== null) put(changeAnswer(current.value, id, { twin: null }));
}

/** Stops what is written into the conversation that is shown; whether there was anything. */
export function stop(): boolean {
  const conversation = current.value;
  if (conversation === null) return false;
  const open = conversation.messages.filter(({ id }) => running.value.has(id));
  for (const { id } of open) running.value.get(id)?.abort();
  return open.length > 0;
}

export function rename(id: string, title: string): void {
  const text = titleOf(title);
  if (text !== "") update(id, (conversation) => ({ ...conversation, title: text, named: true }));
}

export function remove(id: string): void {
  const conversation = conversations.value.find((one) => one.id === id);
  if (conversation === undefined) return;
  for (const message of conversation.messages) running.value.get(message.id)?.abort();
  batch(() => {
    conversations.value = conversations.value.filter((one) => one !== conversation);
    if (currentId.value === id) begin();
  });
  void erase(id).catch(() => undefined);
  tell(`“${conversation.title}” was deleted.`, () => put(conversation));
}

/** Everything again from the beginning, as the server has it. */
export function resetSettings(): void {
  changeSettings({ ...NO_SETTINGS });
}

/** A conversation as a file. */
export function exported(conversation: Conversation, form: "json" | "markdown"): string {
  if (form === "json") return JSON.stringify(conversation, null, 2);
  const names = { user: "You", assistant: engine.value?.model.name ?? "Model", tool: "Tool" };
  const parts = path(conversation).map(({ role, content }) => `## ${names[role]}\n\n${content.trim()}\n`);
  return `# ${conversation.title}\n\n${parts.join("\n")}`;
}
