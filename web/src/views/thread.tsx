// The conversation that is shown, or what to begin one with.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { edit, send, suggest } from "../actions";
import { ORIGIN_WORDS, ORIGINS } from "../model/origins";
import type { Settings } from "../model/settings";
import type { Message } from "../model/tree";
import { busy, currentId, engine, settings, thread } from "../state";
import { Mark } from "../ui/icons";
import { copyText, IconButton } from "../ui/parts";
import { AnswerView } from "./answer";
import { Composer } from "./composer";
import { Siblings } from "./siblings";

/** Nearer to the end than this, in pixels, the page follows the text. */
const NEAR = 80;

export function Chat() {
  const scroller = useRef<HTMLDivElement>(null);
  const messages = thread.value;
  const onScroll = useFollowing(scroller, messages.length);
  return (
    <main class="chat" id="main" aria-label="Chat">
      <div
        class="scroller"
        ref={scroller}
        onScroll={onScroll}
        tabIndex={0}
        role="log"
        aria-label="Conversation"
        aria-live="off"
      >
        {messages.length === 0 ? (
          <Welcome />
        ) : (
          <div class="thread">
            {messages.map((message) => (
              <MessageView key={message.id} message={message} />
            ))}
            <Again messages={messages} />
          </div>
        )}
      </div>
      <p class="unseen" role="status">
        {spoken(messages.at(-1))}
      </p>
      <Composer />
    </main>
  );
}

/** Keeps the end of the conversation in sight until one scrolls up, and again from when one is back at the end. */
function useFollowing(scroller: { current: HTMLDivElement | null }, length: number): () => void {
  const following = useRef(true);
  const top = useRef(0);
  const follow = () => {
    if (following.current) scroller.current?.scrollTo({ top: scroller.current.scrollHeight });
  };
  useEffect(() => {
    following.current = true;
    follow();
  }, [currentId.value, length]);
  useEffect(() => {
    const box = scroller.current;
    const observer = new ResizeObserver(follow);
    for (const element of [box, box?.firstElementChild]) if (element) observer.observe(element);
    return () => observer.disconnect();
  }, [length === 0]);
  return () => {
    const box = scroller.current;
    if (box === null) return;
    // Told of late, when more text may be there: only the way up is one's own.
    const up = box.scrollTop < top.current;
    top.current = box.scrollTop;
    if (box.scrollHeight - box.scrollTop - box.clientHeight < NEAR) following.current = true;
    else if (up) following.current = false;
  };
}

/** What is said of the newest answer to those who do not see it come. */
function spoken(message: Message | undefined): string {
  switch (message?.answer?.state) {
    case "waiting":
    case "streaming":
      return "Answering";
    case "done":
      return "The answer is complete";
    case "stopped":
      return "The answer was stopped";
    default:
      return "";
  }
}

function MessageView({ message }: { message: Message }) {
  if (message.role === "assistant" && message.answer !== undefined) {
    return <AnswerView message={message} answer={message.answer} />;
  }
  if (message.role === "tool") {
    return (
      <div class="tool-message">
        <span>Tool result</span>
        <pre>{message.content}</pre>
      </div>
    );
  }
  return <Question message={message} />;
}

function Question({ message }: { message: Message }) {
  const editing = useSignal(false);
  const onSubmit = (event: Event) => {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    const text = String(new FormData(form).get("text") ?? "").trim();
    editing.value = false;
    if (text !== "") edit(message.id, text);
  };
  const onKey = (event: KeyboardEvent) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      (event.currentTarget as HTMLTextAreaElement).form?.requestSubmit();
    } else if (event.key === "Escape") {
      event.stopPropagation();
      editing.value = false;
    }
  };
  if (editing.value) {
    return (
      <form class="question editing" onSubmit={onSubmit}>
        <textarea
          name="text"
          aria-label="Edit the message"
          onKeyDown={onKey}
          rows={3}
          ref={(area) => area?.focus()}
          defaultValue={message.content}
        />
        <div class="edit-actions">
          <button type="button" class="plain" onClick={() => (editing.value = false)}>
            Cancel
          </button>
          <button type="submit" class="primary">
            Send as a new version
          </button>
        </div>
      </form>
    );
  }
  return (
    <div class="question" data-message={message.id}>
      <p>{message.content}</p>
      <span class="actions">
        <Siblings message={message} what="message" />
        <IconButton
          icon="edit"
          label="Edit this message"
          class="edit-message"
          disabled={busy.value}
          onClick={() => (editing.value = true)}
        />
        <IconButton icon="copy" label="Copy this message" onClick={() => void copyText(message.content, "Message")} />
      </span>
    </div>
  );
}

interface Suggestion {
  text: string;
  shows: string;
  settings?: Partial<Settings>;
}

const HERO = {
  type: "object",
  properties: {
    name: { type: "string", maxLength: 20 },
    animal: { enum: ["fox", "bear", "rabbit"] },
    brave: { type: "boolean" },
  },
  required: ["name", "animal", "brave"],
  additionalProperties: false,
};

const THROW = {
  name: "throw_ball",
  parameters: {
    type: "object",
    properties: { colour: { enum: ["red", "blue"] }, far: { type: "boolean" } },
    required: ["colour", "far"],
    additionalProperties: false,
  },
};

const json = (value: unknown) => JSON.stringify(value, null, 2);

const STORY: Suggestion = { text: "Tell me a story about a fox.", shows: "drafts of the model's own head" };
const CODE: Suggestion = { text: "Write a binary search in Python, with tests.", shows: "drafts in code" };
const SUGGESTIONS: Suggestion[] = [
  { text: "Invent a hero for a story.", shows: "JSON by a schema", settings: { schema: json(HERO) } },
  {
    text: "Throw a ball!",
    shows: "a call of a tool",
    settings: { tools: json([{ type: "function", function: THROW }]), toolChoice: "required" },
  },
];

/** The model in the binary knows stories and nothing else. */
const isBuiltIn = () => engine.value?.model.source.includes("built in") === true;

/** After the first answer: to have it again, where drafts from the text itself are at their best. */
function Again({ messages }: { messages: Message[] }) {
  const { schema, tools } = settings.value;
  const told = messages.length === 2 && messages[1]?.answer?.state === "done" && messages[1].content !== "";
  if (!told || schema !== "" || tools !== "") return null;
  const text = isBuiltIn() ? "Tell me the story again." : "Repeat your answer word for word.";
  return (
    <button type="button" class="again" onClick={() => send(text)}>
      {text} <small>shows n-gram drafts</small>
    </button>
  );
}

function Welcome() {
  const suggestions = [isBuiltIn() ? STORY : CODE, ...SUGGESTIONS];
  return (
    <div class="welcome">
      <Mark />
      <h1>
        Drafted, verified, <em>identical</em>.
      </h1>
      <p class="lead">
        Ask {engine.value?.model.name ?? "the model"} something. Every token shows how it came, and one click proves
        that the text is the same without drafts.
      </p>
      <ul class="legend-line" aria-label="Colours of tokens">
        {ORIGINS.map((origin) => (
          <li key={origin}>
            <span class={`swatch o-${origin}`} /> {ORIGIN_WORDS[origin].name}
          </li>
        ))}
      </ul>
      <div class="suggestions">
        {suggestions.map(({ text, shows, settings = {} }) => (
          <button type="button" key={text} onClick={() => suggest(text, settings)}>
            <span>{text}</span>
            <small>shows {shows}</small>
          </button>
        ))}
      </div>
    </div>
  );
}
