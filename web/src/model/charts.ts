// Series of samples as lines to draw.

import type { Gauges } from "../api/engine";

/** A line in a box, as a path of SVG; gaps where nothing was measured. */
export function linePath(values: readonly (number | null)[], most: number, width: number, height: number): string {
  const step = width / Math.max(1, values.length - 1);
  let path = "";
  let pen = "M";
  values.forEach((value, index) => {
    if (value === null) {
      pen = "M";
      return;
    }
    const y = height - (most > 0 ? (value / most) * height : 0);
    path += `${pen}${(index * step).toFixed(1)} ${y.toFixed(1)}`;
    pen = "L";
  });
  return path;
}

/** A round number that is not below any of the values. */
export function ceiling(values: readonly (number | null)[], least: number): number {
  const most = Math.max(least, ...values.map((value) => value ?? 0));
  const power = 10 ** Math.floor(Math.log10(most));
  return power * ([1, 2, 5, 10].find((times) => times * power >= most) ?? 10);
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
