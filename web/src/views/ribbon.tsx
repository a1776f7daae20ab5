// The answer as a strip of its tokens, step by step: one cell per token, a gap between steps. It is also how the keyboard
// walks through the tokens.

import { useLayoutEffect, useRef } from "preact/hooks";
import { visible } from "../model/format";
import { ORIGIN_WORDS, type Piece } from "../model/origins";
import { colour, useCanvas } from "../ui/canvas";
import { point, pointed } from "./token-tip";

interface RibbonProps {
  answer: string;
  pieces: readonly Piece[];
}

const HEIGHT = 18;

/** Where cells begin and end, in pixels of a strip so wide. Steps are apart by a pixel or more if there is room. */
export function cells(pieces: readonly Piece[], width: number): [number, number][] {
  const last = pieces.at(-1);
  if (last === undefined) return [];
  const gaps = last.step;
  const gap = Math.min(2, (width * 0.25) / Math.max(1, gaps));
  const cell = Math.min(14, (width - gap * gaps) / pieces.length);
  return pieces.map((piece) => {
    const from = piece.index * cell + piece.step * gap;
    return [from, from + cell];
  });
}

export function Ribbon({ answer, pieces }: RibbonProps) {
  const places = useRef<[number, number][]>([]);
  const { ref, draw } = useCanvas(HEIGHT, (context, width) => {
    places.current = cells(pieces, width);
    const chosen = pointed.value?.answer === answer ? pointed.value.index : -1;
    pieces.forEach((piece, index) => {
      const [from, to] = places.current[index] as [number, number];
      const low = piece.origin === "sampled" ? 6 : 0;
      context.fillStyle = colour(`--o-${piece.origin}`);
      context.globalAlpha = chosen < 0 || chosen === index ? 1 : 0.55;
      context.fillRect(from, low, Math.max(0.5, to - from - (to - from > 3 ? 1 : 0)), HEIGHT - low - 3);
      if (piece.rejected.length > 0) {
        context.fillStyle = colour("--red");
        context.fillRect(from, HEIGHT - 2, Math.max(1, to - from - 1), 2);
      }
    });
    context.globalAlpha = 1;
  });
  const chosen = pointed.value?.answer === answer ? pointed.value.index : null;
  useLayoutEffect(draw, [pieces, chosen]);
  const at = (event: PointerEvent) => {
    const x = event.offsetX;
    const index = places.current.findIndex(([, to]) => x < to);
    if (index >= 0) point(answer, index);
  };
  const onKey = (event: KeyboardEvent) => {
    const now = chosen ?? 0;
    const moves: Record<string, number> = {
      ArrowRight: chosen === null ? 0 : now + 1,
      ArrowLeft: now - 1,
      Home: 0,
      End: pieces.length - 1,
      PageDown: nextRefused(pieces, now, 1),
      PageUp: nextRefused(pieces, now, -1),
    };
    const target = moves[event.key];
    if (event.key === "Escape" && chosen !== null) pointed.value = null;
    else if (target !== undefined) point(answer, Math.max(0, Math.min(pieces.length - 1, target)));
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div
      class="ribbon"
      role="slider"
      tabIndex={0}
      aria-label="Tokens of the answer. Left and right walk through them, page up and down go to refused drafts."
      aria-valuemin={1}
      aria-valuemax={Math.max(1, pieces.length)}
      aria-valuenow={(chosen ?? 0) + 1}
      aria-valuetext={inWords(pieces[chosen ?? 0])}
      onKeyDown={onKey}
      onBlur={() => {
        pointed.value = null;
      }}
      onPointerMove={at}
      onPointerDown={at}
      onPointerLeave={() => {
        pointed.value = null;
      }}
    >
      <canvas ref={ref} />
    </div>
  );
}

/** The next token with refused drafts in a direction; stays where there is none. */
function nextRefused(pieces: readonly Piece[], from: number, by: 1 | -1): number {
  for (let index = from + by; index >= 0 && index < pieces.length; index += by) {
    if ((pieces[index]?.rejected.length ?? 0) > 0) return index;
  }
  return from;
}

function inWords(piece: Piece | undefined): string {
  if (piece === undefined) return "no tokens";
  const refused = piece.rejected.map(({ text }) => visible(text)).join(", ");
  const words = `${visible(piece.text)}: ${ORIGIN_WORDS[piece.origin].name}, step ${piece.step + 1}`;
  return refused === "" ? words : `${words}; refused drafts: ${refused}`;
}
