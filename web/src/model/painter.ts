// Which token each character of a rendered answer comes from. Markdown drops characters (marks, indents, links), so what
// is shown is a subsequence of what was generated, and is followed through it from left to right.

import { type Piece, pieceAt } from "./origins";

/** A stretch of shown text that is from one token, or from none that is known. */
export interface Run {
  text: string;
  piece: Piece | null;
}

/** Farther than this, a match is chance and not the same character. */
const REACH = 256;

export class Painter {
  private cursor = 0;

  /** `shift`: where `source` begins in the raw text, whose tokens `all` are. */
  constructor(
    private readonly source: string,
    private readonly all: readonly Piece[],
    private readonly shift: number,
  ) {}

  /** Goes to where a block begins. */
  seek(place: number): void {
    this.cursor = place;
  }

  /** Cuts shown text into runs, and goes on behind it. */
  take(text: string): Run[] {
    if (this.all.length === 0) return [{ text, piece: null }];
    const runs: Run[] = [];
    const whole = this.source.indexOf(text, this.cursor);
    const exact = whole >= 0 && whole - this.cursor <= REACH;
    if (exact) this.cursor = whole;
    for (const character of text) {
      if (!exact) this.find(character);
      const piece = pieceAt(this.all, this.cursor + this.shift);
      const last = runs.at(-1);
      if (last !== undefined && last.piece === piece) last.text += character;
      else runs.push({ text: character, piece });
      this.cursor += character.length;
    }
    return runs;
  }

  /** Goes to the next such character; stays where there is none, as for one that was written as an entity. */
  private find(character: string): void {
    const place = this.source.indexOf(character, this.cursor);
    if (place >= 0 && place - this.cursor <= REACH) this.cursor = place;
  }
}
