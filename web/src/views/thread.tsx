// The conversation that is shown, or what to begin one with.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { changeSettings, edit, send } from "../actions";
import { ORIGIN_WORDS, ORIGINS } from "../model/origins";
import type { Message } from "../model/tree";
import { currentId, engine, running, thread } from "../state";
import { Mark } from "../ui/icons";
import { copyText, IconButton } from "../ui/parts";
import { AnswerView } from "./answer";
import { Composer } from "./composer";
import { Siblings } from "./siblings";

/** Nearer to the end than this, in pixels, the page follows the text. */
const NEAR = 80;

export function Chat() {
  const scroller = useRef<HTMLDivElement>(null);
  const following = useRef(true);
  const messages = thread.value;
  const onScroll = () => {
    const box = scroller.current;
    if (box !== null) following.current = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR;
  };
  useEffect(() => {
    following.current = true;
  }, [currentId.value, messages.length]);
  useEffect(() => {
    if (following.current) scroller.current?.scrollTo({ top: scroller.current.scrollHeight });
  });
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
          </div>
        )}
      </div>
      <Composer />
    </main>
  );
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
          disabled={thread.value.some(({ id }) => running.value.has(id))}
          onClick={() => (editing.value = true)}
        />
        <IconButton icon="copy" label="Copy this message" onClick={() => void copyText(message.content, "Message")} />
      </span>
    </div>
  );
}

interface Suggestion {
  title: string;
  shows: string;
  text: string;
  schema?: string;
}

const BALL = JSON.stringify(
  {
    type: "object",
    properties: {
      name: { type: "string", maxLength: 20 },
      animal: { enum: ["fox", "bear", "rabbit"] },
      brave: { type: "boolean" },
    },
    required: ["name", "animal", "brave"],
    additionalProperties: false,
  },
  null,
  2,
);

const SUGGESTIONS: Suggestion[] = [
  { title: "Tell me a story about a fox.", shows: "neural drafts", text: "Tell me a story about a fox." },
  {
    title: "Tell it again and again.",
    shows: "n-gram drafts",
    text: "One day, a fox saw a red ball. The fox liked the red ball. One day, a fox saw a red ball. Tell me about the fox and the red ball.",
  },
  {
    title: "Describe a hero as JSON.",
    shows: "forced tokens",
    text: "Who is the hero of the story?",
    schema: BALL,
  },
];

function Welcome() {
  const start = ({ text, schema }: Suggestion) => {
    changeSettings({ schema: schema ?? "" });
    send(text);
  };
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
        {SUGGESTIONS.map((suggestion) => (
          <button type="button" key={suggestion.title} onClick={() => start(suggestion)}>
            <span>{suggestion.title}</span>
            <small>shows {suggestion.shows}</small>
          </button>
        ))}
      </div>
    </div>
  );
}
