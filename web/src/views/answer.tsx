// One answer: its text in the colours of its tokens, how it came about, and what can be done with it.

import { useMemo } from "preact/hooks";
import { compare, forget, retry, send } from "../actions";
import { apiKey } from "../api/http";
import { duration, percent, rateOf, short } from "../model/format";
import { countOrigins, ESTIMATED, ORIGINS, pieces, shiftOf } from "../model/origins";
import { asCurl, asPython } from "../model/snippets";
import type { Answer, Message, ToolCall } from "../model/tree";
import { colours, running, thread } from "../state";
import { Icon } from "../ui/icons";
import { copyText, IconButton, Menu, StackedBar } from "../ui/parts";
import { Markdown } from "./markdown";
import { Proof, textOf } from "./proof";
import { Ribbon } from "./ribbon";
import { Siblings } from "./siblings";
import { point, pointed, TokenTip } from "./token-tip";

export function AnswerView({ message, answer }: { message: Message; answer: Answer }) {
  const all = useMemo(() => pieces(answer.steps), [answer.steps]);
  const raw = useMemo(() => all.map(({ text }) => text).join(""), [all]);
  const busy = answer.state === "waiting" || answer.state === "streaming";
  // What a schema asked for has indents that Markdown would drop.
  const code = "response_format" in answer.request ? "json" : undefined;
  const shift = shiftOf(raw, message.content);
  const text = <Markdown text={message.content} pieces={all} shift={shift} code={code} />;
  const over = (event: Event) => {
    const index = (event.target as Element).closest<HTMLElement>("[data-t]")?.dataset["t"];
    if (index !== undefined) point(message.id, Number(index));
    else pointed.value = null;
  };
  return (
    <article class="answer" data-state={answer.state} aria-label="Answer" aria-busy={busy}>
      {answer.reasoning !== "" && (
        <details class="reasoning">
          <summary>Reasoning</summary>
          <p>{answer.reasoning}</p>
        </details>
      )}
      <div
        class={colours.value ? "text coloured" : "text"}
        data-answer={message.id}
        onPointerOver={over}
        onPointerDown={over}
        onPointerLeave={() => {
          pointed.value = null;
        }}
      >
        {answer.twin === null ? (
          text
        ) : (
          <Proof message={message} answer={answer} twin={answer.twin}>
            {text}
          </Proof>
        )}
        {busy && <span class="caret" />}
      </div>
      {answer.toolCalls.map((call) => (
        <ToolCallView key={call.id} call={call} last={thread.value.at(-1)?.id === message.id} busy={busy} />
      ))}
      {answer.error !== null && (
        <p class="verdict bad" role="alert">
          <Icon name="warn" /> {answer.error}
        </p>
      )}
      {colours.value && all.length > 0 && <Ribbon answer={message.id} pieces={all} />}
      <TokenTip answer={message.id} pieces={all} />
      <Footer message={message} answer={answer} busy={busy} />
    </article>
  );
}

/** The figures of an answer in one line. */
function Figures({ answer }: { answer: Answer }) {
  const { tokens, by } = countOrigins(answer.steps);
  const usage = answer.usage?.speculation;
  const rate = rateOf(answer.usage?.completion_tokens ?? 0, answer.totalMs);
  const drafted = tokens - by.sampled;
  return (
    <span class="answer-figures">
      {answer.state === "stopped" && <span>stopped</span>}
      {answer.finish === "length" && <span title="max_tokens, or the model's context">cut at its limit</span>}
      {rate !== null && <span>{short(rate)} tok/s</span>}
      {usage !== undefined && <strong>{usage.mean_acceptance_length.toFixed(2)} tokens per step</strong>}
      {tokens > 0 && (
        <span class="mini-share">
          <StackedBar
            label={ORIGINS.map((origin) => `${by[origin]} ${origin}`).join(", ")}
            parts={ORIGINS.map((origin) => ({ name: origin, share: by[origin] }))}
          />
          {percent(drafted / tokens)} from drafts
        </span>
      )}
      {usage !== undefined && usage.drafted > 0 && (
        <span title={ESTIMATED}>
          ≈ {duration(Math.abs(usage.ms_saved))} {usage.ms_saved < 0 ? "lost" : "saved"}
        </span>
      )}
    </span>
  );
}

function Footer({ message, answer, busy }: { message: Message; answer: Answer; busy: boolean }) {
  const base = new URL(".", document.baseURI).href;
  const keyed = apiKey.value !== "";
  const active = running.value.has(message.id);
  return (
    <footer class="answer-footer">
      <Figures answer={answer} />
      <span class="actions">
        <Siblings message={message} what="answer" />
        {!busy && (
          <>
            <Prove message={message} answer={answer} active={active} />
            <IconButton icon="retry" label="Another answer" disabled={active} onClick={() => retry(message.id)} />
            <IconButton icon="copy" label="Copy the answer" onClick={() => void copyText(textOf(message), "Answer")} />
            <Menu
              icon="code"
              label="Copy the request"
              items={[
                {
                  icon: "code",
                  label: "Copy as curl",
                  act: () => void copyText(asCurl(answer.request, base, keyed), "curl command"),
                },
                {
                  icon: "code",
                  label: "Copy as Python",
                  act: () => void copyText(asPython(answer.request, base, keyed), "Python program"),
                },
              ]}
            />
          </>
        )}
      </span>
    </footer>
  );
}

/** The way to the proof, and back to the plain answer. */
function Prove({ message, answer, active }: { message: Message; answer: Answer; active: boolean }) {
  const shown = answer.twin !== null;
  return (
    <IconButton
      icon="equal"
      text={shown ? "Hide proof" : "Prove equal"}
      class="prove"
      label={shown ? "Show the answer alone" : "Run the same seed without drafts and compare the texts"}
      disabled={active || textOf(message) === ""}
      onClick={() => (shown ? forget(message.id) : compare(message.id))}
    />
  );
}

function ToolCallView({ call, last, busy }: { call: ToolCall; last: boolean; busy: boolean }) {
  const onSubmit = (event: SubmitEvent) => {
    event.preventDefault();
    const data = new FormData(event.currentTarget as HTMLFormElement);
    send(String(data.get("result") ?? ""), call.id);
  };
  return (
    <div class="tool-call">
      <div class="tool-name">
        <Icon name="code" /> {call.name}
      </div>
      <pre tabIndex={0}>{indented(call.arguments)}</pre>
      {last && !busy && (
        <form class="tool-result" onSubmit={onSubmit}>
          <input name="result" aria-label={`Result of ${call.name}`} placeholder="What the tool returns" required />
          <button type="submit" class="plain">
            Send result
          </button>
        </form>
      )}
    </div>
  );
}

function indented(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
