// The same request without drafts, beside the answer: whether the texts are equal, and what each took.

import type { ComponentChildren } from "preact";
import { around, compareTexts } from "../model/compare";
import { count, duration } from "../model/format";
import type { Answer, Message, Twin } from "../model/tree";
import { Icon } from "../ui/icons";

/** What an answer says, calls of tools included. */
export function textOf(message: Message): string {
  return message.content + (message.answer?.toolCalls ?? []).map((call) => call.arguments).join("");
}

interface ProofProps {
  message: Message;
  answer: Answer;
  twin: Twin;
  /** The answer as it is shown anyway. */
  children: ComponentChildren;
}

export function Proof({ message, answer, twin, children }: ProofProps) {
  const text = textOf(message);
  return (
    <section class="proof" aria-label="The same seed without drafts">
      <div class="proof-columns">
        <Column name="With drafts" run={{ ...answer, tokens: answer.usage?.completion_tokens ?? null }}>
          {children}
        </Column>
        <Column name="Without drafts" run={twin}>
          <div class="markdown twin-text">{twin.text}</div>
        </Column>
      </div>
      <Verdict text={text} answer={answer} twin={twin} />
    </section>
  );
}

interface ColumnProps {
  name: string;
  run: Pick<Twin, "tokens" | "totalMs">;
  children: ComponentChildren;
}

function Column({ name, run: { tokens, totalMs }, children }: ColumnProps) {
  return (
    <div class="proof-column">
      <h4>
        {name}
        <span>{totalMs === null ? "running" : `${duration(totalMs)} · ${count(tokens ?? 0, "token")}`}</span>
      </h4>
      {children}
    </div>
  );
}

function Verdict({ text, answer, twin }: { text: string; answer: Answer; twin: Twin }) {
  if (twin.state === "streaming") {
    return (
      <p class="verdict" role="status">
        <span class="spinner" /> Running the same seed without drafts
      </p>
    );
  }
  if (twin.state === "failed") {
    return (
      <p class="verdict bad" role="status">
        <Icon name="warn" /> The run without drafts gave no text: {twin.error}
      </p>
    );
  }
  const { equal, common, partial } = compareTexts(text, twin.text, answer.state === "stopped");
  if (equal) {
    return (
      <p class="verdict good" role="status">
        <Icon name="check" />
        <span>
          <strong>Identical.</strong> {count(common, "character")}
          {partial ? ", as far as the stopped answer goes," : ""} with and without drafts, to the last one.
        </span>
      </p>
    );
  }
  const [left, right] = [around(text, common), around(twin.text, common)];
  return (
    <div class="verdict bad" role="status">
      <Icon name="warn" />
      <span>
        <strong>They differ</strong> at character {common + 1}: “{left.before}
        <mark>{left.after || "(end)"}</mark>” with drafts, “{right.before}
        <mark>{right.after || "(end)"}</mark>” without. That is a fault; please report it with the request.
      </span>
    </div>
  );
}
