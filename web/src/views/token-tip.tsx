// What is told of the token under the pointer, or of the one that the keyboard has come to.

import { signal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { count, visible } from "../model/format";
import { ORIGIN_WORDS, type Piece } from "../model/origins";

interface Pointed {
  answer: string;
  index: number;
}

/** Which token of which answer. */
export const pointed = signal<Pointed | null>(null);

export function point(answer: string, index: number): void {
  const now = pointed.value;
  if (now?.answer !== answer || now.index !== index) pointed.value = { answer, index };
}

/** The elements of a token in the text; a token can be cut by markup. */
function elements(answer: string, index: number): Element[] {
  return [...document.querySelectorAll(`[data-answer="${CSS.escape(answer)}"] [data-t="${index}"]`)];
}

interface TipProps {
  answer: string;
  pieces: readonly Piece[];
}

export function TokenTip({ answer, pieces }: TipProps) {
  const box = useRef<HTMLDivElement>(null);
  const index = pointed.value?.answer === answer ? pointed.value.index : null;
  const piece = index === null ? undefined : pieces[index];
  useLayoutEffect(() => {
    if (index === null) return;
    const found = elements(answer, index);
    for (const element of found) element.classList.add("pointed");
    const target = found[0]?.getBoundingClientRect();
    if (box.current !== null && target !== undefined) place(box.current, target);
    return () => {
      for (const element of found) element.classList.remove("pointed");
    };
  });
  if (piece === undefined) return null;
  const step = pieces.filter((other) => other.step === piece.step);
  const { name, meaning } = ORIGIN_WORDS[piece.origin];
  return (
    <div class="tip" role="tooltip" ref={box}>
      <div class="tip-head">
        <span class={`swatch o-${piece.origin}`} />
        <strong>{name}</strong>
        <code>{visible(piece.text)}</code>
      </div>
      <div class="tip-line">{meaning}</div>
      <div class="tip-line">
        Step {piece.step + 1} gave {count(step.length, "token")} · token {piece.index + 1} · id {piece.id}
      </div>
      {piece.rejected.length > 0 && (
        <div class="tip-refused">
          <span>Refused here</span>
          {piece.rejected.map((draft, place) => (
            <code key={place}>{visible(draft.text)}</code>
          ))}
        </div>
      )}
    </div>
  );
}

/** Below the token, or above it where there is no room, and within the window. */
function place(box: HTMLElement, target: DOMRect): void {
  const { width, height } = box.getBoundingClientRect();
  const below = target.bottom + 8;
  const top = below + height > innerHeight - 8 ? Math.max(8, target.top - height - 8) : below;
  box.style.left = `${Math.max(8, Math.min(innerWidth - width - 8, target.left))}px`;
  box.style.top = `${top}px`;
}
