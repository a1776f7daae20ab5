// Series of samples as lines to draw.

import type { Gauges } from "../api/engine";

/** A line in a box, the area below it, and values without neighbours, as paths of SVG; gaps where nothing was measured. */
export interface Drawn {
  line: string;
  area: string;
  dots: string;
}

export function draw(values: readonly (number | null)[], most: number, width: number, height: number): Drawn {
  const step = width / Math.max(1, values.length - 1);
  const drawn: Drawn = { line: "", area: "", dots: "" };
  let begin: number | null = null;
  values.forEach((value, index) => {
    if (value === null) return;
    const x = (index * step).toFixed(1);
    const y = (height - (most > 0 ? (value / most) * height : 0)).toFixed(1);
    begin ??= index;
    const last = (values[index + 1] ?? null) === null;
    if (last && begin === index) {
      // A line without length, whose ends are round.
      drawn.dots += `M${x} ${y}h0`;
      begin = null;
      return;
    }
    drawn.line += `${begin === index ? "M" : "L"}${x} ${y}`;
    drawn.area += begin === index ? `M${x} ${height}V${y}` : `L${x} ${y}`;
    if (!last) return;
    drawn.area += `V${height}Z`;
    begin = null;
  });
  return drawn;
}

/** A round number that is not below any of the values, nor far above all of them. */
export function ceiling(values: readonly (number | null)[], least: number): number {
  const most = Math.max(least, ...values.map((value) => value ?? 0));
  const power = 10 ** Math.floor(Math.log10(most));
  return power * ([1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].find((times) => times * power >= most) ?? 10);
}

/** Drafts by their place in the window, over samples: how many were made and accepted. */
export function byPosition(samples: readonly Gauges[]): { drafted: number; accepted: number }[] {
  const sums: { drafted: number; accepted: number }[] = [];
  for (const { drafts } of samples) {
    drafts.by_position.forEach(({ drafted, accepted }, place) => {
      sums[place] ??= { drafted: 0, accepted: 0 };
      const sum = sums[place] as { drafted: number; accepted: number };
      sum.drafted += drafted;
      sum.accepted += accepted;
    });
  }
  return sums;
}
