// Whether two answers are the same text, and where they part if they are not.

export interface Comparison {
  equal: boolean;
  /** Characters up to the first difference. */
  common: number;
  /** The other ended early, because one of them was stopped: equal as far as both go. */
  partial: boolean;
}

/** Compares by code points, so that no character is cut in half. `stopped`: one of them was not let to its end. */
export function compareTexts(left: string, right: string, stopped: boolean): Comparison {
  const most = Math.min(left.length, right.length);
  let common = 0;
  while (common < most && left.charCodeAt(common) === right.charCodeAt(common)) common += 1;
  const whole = common === left.length && common === right.length;
  if (whole) return { equal: true, common, partial: false };
  if (stopped && common === most && common > 0) return { equal: true, common, partial: true };
  const code = left.charCodeAt(common - 1);
  const half = common > 0 && code >= 0xd800 && code <= 0xdbff;
  return { equal: false, common: half ? common - 1 : common, partial: false };
}

/** The surroundings of a difference: what both have before it, and how each goes on. */
export function around(text: string, place: number, reach = 24): { before: string; after: string } {
  return { before: text.slice(Math.max(0, place - reach), place), after: text.slice(place, place + reach) };
}
