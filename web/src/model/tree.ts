// A conversation as a tree: editing a question or asking for another answer adds a sibling, and nothing is lost. All
// functions return a new conversation and leave the old one as it is.

import type { Usage } from "../api/chat";
import type { OriginStep } from "./origins";
import type { Settings } from "./settings";

export interface ToolCall {
  id: string;
  name: string;
  arguments: string;
}

/** What is known of an answer beside its text. */
export interface Answer {
  state: "waiting" | "streaming" | "done" | "stopped" | "failed";
  /** The body of the request, as it was sent. */
  request: Record<string, unknown>;
  requestId: string;
  reasoning: string;
  toolCalls: ToolCall[];
  steps: OriginStep[];
  finish: string | null;
  error: string | null;
  usage: Usage | null;
  /** From sending to the first text, and to the end. */
  firstMs: number | null;
  totalMs: number | null;
  /** The same request without drafts, if it was run. */
  twin: Twin | null;
}

/** The same seed without drafts. */
export interface Twin {
  state: "streaming" | "done" | "failed";
  text: string;
  error: string | null;
  tokens: number | null;
  totalMs: number | null;
}

export interface Message {
  id: string;
  parent: string | null;
  role: "user" | "assistant" | "tool";
  content: string;
  /** Which call a tool's result belongs to. */
  toolCallId?: string;
  answer?: Answer;
}

export interface Conversation {
  id: string;
  title: string;
  /** Whether a person gave it that title. */
  named: boolean;
  created: number;
  updated: number;
  settings: Settings;
  /** What the suggestion that it began with has set: conversations after it do without. */
  lent?: Partial<Settings>;
  /** In the order in which they were made. */
  messages: Message[];
  /** Which child of a message is shown; the empty name is the beginning's. */
  chosen: Record<string, string>;
}

const key = (parent: string | null) => parent ?? "";

/** The messages that follow one, oldest first. */
export function children(conversation: Conversation, parent: string | null): Message[] {
  return conversation.messages.filter((message) => message.parent === parent);
}

export function find(conversation: Conversation, id: string): Message | undefined {
  return conversation.messages.find((message) => message.id === id);
}

/** What is shown: from the beginning, the chosen child of each, or else the newest. */
export function path(conversation: Conversation): Message[] {
  const shown: Message[] = [];
  let parent: string | null = null;
  for (;;) {
    const all: Message[] = children(conversation, parent);
    const wanted: string | undefined = conversation.chosen[key(parent)];
    const next: Message | undefined = all.find((message) => message.id === wanted) ?? all.at(-1);
    if (next === undefined) return shown;
    shown.push(next);
    parent = next.id;
  }
}

/** The messages before one and itself, from the beginning. */
export function pathTo(conversation: Conversation, id: string): Message[] {
  const found: Message[] = [];
  let message = find(conversation, id);
  while (message !== undefined) {
    found.unshift(message);
    message = message.parent === null ? undefined : find(conversation, message.parent);
  }
  return found;
}

/** A request that no answer beside it came from: where a person has set the seed, another answer has the next one. */
export function unlike(request: Record<string, unknown>, beside: readonly Message[]): Record<string, unknown> {
  // What failed has given nothing that would be there twice.
  const given = beside.filter(({ answer }) => answer?.state !== "failed");
  const known = new Set(given.map(({ answer }) => JSON.stringify(answer?.request)));
  let other = request;
  while (typeof other["seed"] === "number" && known.has(JSON.stringify(other))) {
    const next = other["seed"] + 1;
    other = { ...other, seed: Number.isSafeInteger(next) ? next : 0 };
  }
  return other;
}

/** Adds a message and shows it. */
export function append(conversation: Conversation, message: Message): Conversation {
  return {
    ...conversation,
    messages: [...conversation.messages, message],
    chosen: { ...conversation.chosen, [key(message.parent)]: message.id },
  };
}

/** Changes a message. */
export function change(conversation: Conversation, id: string, changes: Partial<Message>): Conversation {
  const changed = (message: Message) => (message.id === id ? { ...message, ...changes } : message);
  return { ...conversation, messages: conversation.messages.map(changed) };
}

/** Changes what is known of an answer. */
export function changeAnswer(conversation: Conversation, id: string, changes: Partial<Answer>): Conversation {
  const answer = find(conversation, id)?.answer;
  return answer === undefined ? conversation : change(conversation, id, { answer: { ...answer, ...changes } });
}

/** The place of a message among its siblings, from 0, and how many there are. */
export function place(conversation: Conversation, id: string): { index: number; count: number } {
  const message = find(conversation, id);
  const all = message === undefined ? [] : children(conversation, message.parent);
  return { index: all.findIndex((sibling) => sibling.id === id), count: all.length };
}

/** Shows the sibling so many places further; stays at the ends. */
export function turn(conversation: Conversation, id: string, by: number): Conversation {
  const message = find(conversation, id);
  if (message === undefined) return conversation;
  const all = children(conversation, message.parent);
  const sibling = all[all.indexOf(message) + by];
  if (sibling === undefined) return conversation;
  return { ...conversation, chosen: { ...conversation.chosen, [key(message.parent)]: sibling.id } };
}

/** What a conversation is called until a person says otherwise. */
export function titleOf(text: string): string {
  const line = text.trim().split(/\s+/).join(" ");
  return line.length <= 48 ? line : `${line.slice(0, 47).trimEnd()}…`;
}

/** A conversation as it is after being loaded: what was under way when the page was closed was stopped. */
export function settled(conversation: Conversation): Conversation {
  const end = (message: Message): Message => {
    const { answer } = message;
    if (answer === undefined) return message;
    const open = answer.state === "streaming" || answer.state === "waiting";
    const twin = answer.twin?.state === "streaming" ? null : answer.twin;
    return { ...message, answer: { ...answer, twin, state: open ? "stopped" : answer.state } };
  };
  return { ...conversation, messages: conversation.messages.map(end) };
}
