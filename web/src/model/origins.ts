// How tokens came: what the server tells of each step, in the form in which the page draws and counts it.

/** Where a token comes from. */
export type Origin = "sampled" | "ngram" | "neural" | "grammar";

/** All of them, in the order of the legend. */
export const ORIGINS: readonly Origin[] = ["sampled", "ngram", "neural", "grammar"];

/** What the page calls them, and what that means. */
export const ORIGIN_WORDS: Record<Origin, { name: string; meaning: string }> = {
  sampled: { name: "Sampled", meaning: "chosen by the model, one per step" },
  ngram: { name: "N-gram draft", meaning: "guessed from the text so far, then verified" },
  neural: { name: "Neural draft", meaning: "guessed by a draft head or model, then verified" },
  grammar: { name: "Forced", meaning: "the only token that the grammar allows" },
};

/** What the time is that drafts saved or lost. */
export const ESTIMATED = "Estimated by the engine: the time of its steps against as many tokens one by one.";

/** A token as text. */
export interface DraftToken {
  id: number;
  text: string;
}

/** One step of the engine for one request, as `token_origins` lists them. */
export interface OriginStep {
  kind: "prefill" | "decode";
  source: Origin | null;
  drafted: number;
  accepted: number;
  rejected: DraftToken[];
  tokens: (DraftToken & { origin: Origin })[];
}

/** A token of the answer with what is told of it. */
export interface Piece {
  /** Its place among the tokens of the answer. */
  index: number;
  id: number;
  text: string;
  /** Where its text begins in the raw text. */
  start: number;
  origin: Origin;
  /** The place of its step among the steps of the answer. */
  step: number;
  /** Drafts that were refused where this token stands; the first was in its place. */
  rejected: DraftToken[];
}

/** The tokens of steps, each with its place. Refused drafts are with the token that was chosen in their place. */
export function pieces(steps: readonly OriginStep[]): Piece[] {
  const found: Piece[] = [];
  let start = 0;
  steps.forEach((step, number) => {
    step.tokens.forEach((token, place) => {
      const last = place === step.tokens.length - 1;
      const refused = last && token.origin === "sampled" ? step.rejected : [];
      found.push({
        index: found.length,
        id: token.id,
        text: token.text,
        start,
        origin: token.origin,
        step: number,
        rejected: refused,
      });
      start += token.text.length;
    });
  });
  return found;
}

/** What steps add up to. Prefill is counted as tokens, and not as a step, as in the server's `usage.speculation`. */
export interface OriginCounts {
  tokens: number;
  steps: number;
  drafted: number;
  accepted: number;
  by: Record<Origin, number>;
}

export function countOrigins(steps: readonly OriginStep[]): OriginCounts {
  const counts: OriginCounts = {
    tokens: 0,
    steps: 0,
    drafted: 0,
    accepted: 0,
    by: { sampled: 0, ngram: 0, neural: 0, grammar: 0 },
  };
  for (const step of steps) {
    counts.tokens += step.tokens.length;
    for (const token of step.tokens) counts.by[token.origin] += 1;
    if (step.kind !== "decode") continue;
    counts.steps += 1;
    counts.drafted += step.drafted;
    counts.accepted += step.accepted;
  }
  return counts;
}

/** The piece whose text covers a place of the raw text, if it is known yet. */
export function pieceAt(all: readonly Piece[], place: number): Piece | null {
  let low = 0;
  let high = all.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    const piece = all[middle] as Piece;
    if (piece.start + piece.text.length <= place) low = middle + 1;
    else high = middle;
  }
  const found = all[low];
  return found !== undefined && found.start <= place ? found : null;
}

/** Where the answer's text begins in the raw text, which also holds reasoning and the marks of tool calls. */
export function shiftOf(raw: string, content: string): number {
  const head = content.slice(0, 64);
  const place = head === "" ? 0 : raw.lastIndexOf(head);
  return Math.max(place, 0);
}
