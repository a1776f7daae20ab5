// The last few hundred steps on one clock: what to draw, where, and what it adds up to.

import { PHASES, type Phase, type Span, type Step } from "../api/engine";

/** As many as the server keeps. */
export const MOST_STEPS = 512;

/** Narrower than this, in nanoseconds, a view shows nothing. */
const NARROWEST = 20_000;

/** Longer than this without any work, in nanoseconds, says nothing and would push everything else aside. */
const LONG_PAUSE = 5_000_000;

/** What is left of it. */
const PAUSE = 150_000;

/** A step on the clock that is shown, which leaves out the time in which there was nothing to do. */
export interface ShownStep extends Step {
  /** What to add to get the engine's clock. */
  left: number;
  /** How much was left out before it; 0 if it followed the step before. */
  pause: number;
}

/** Adds steps behind those that are there, which may be among them after a reconnection. */
export function extend(all: readonly ShownStep[], fresh: readonly Step[]): ShownStep[] {
  const first = all[0];
  const begin = fresh[0];
  // A restarted engine counts from the beginning, on another clock.
  const restarted = first !== undefined && begin !== undefined && begin.plan[0] < first.plan[0] + first.left;
  const shown = restarted ? [] : [...all];
  for (const step of fresh) {
    const last = shown.at(-1);
    if (last === undefined || step.step > last.step) shown.push(shift(step, last));
  }
  return shown.slice(-MOST_STEPS);
}

/** Puts a step behind the last one, closer if nothing was to be done in between. */
function shift(step: Step, last: ShownStep | undefined): ShownStep {
  const left = last?.left ?? 0;
  const gap = last === undefined ? 0 : Math.min(step.plan[0], step.device[0]) - endOf(last) - left;
  const pause = step.idle_ns === null && gap > LONG_PAUSE ? gap - PAUSE : 0;
  const by = left + pause;
  const move = ([from, to]: Span): Span => [from - by, to - by];
  const phases = Object.fromEntries(PHASES.map((phase) => [phase, move(step[phase])])) as Record<Phase, Span>;
  return { ...step, ...phases, device: move(step.device), left: by, pause };
}

const endOf = (step: Step) => Math.max(step.device[1], step.emit[1]);

/** The part of the clock that is shown. */
export interface View {
  from: number;
  to: number;
}

/** From the first to the last thing that happened; null if nothing did. */
export function bounds(steps: readonly Step[]): View | null {
  const first = steps[0];
  const last = steps.at(-1);
  if (first === undefined || last === undefined) return null;
  const idle = first.idle_ns ?? 0;
  return {
    from: Math.min(first.plan[0], first.device[0] - idle),
    to: Math.max(last.device[1], last.emit[1]),
  };
}

/** The newest steps, as many as are readable at first sight. */
export function latest(steps: readonly Step[], count: number): View | null {
  return bounds(steps.slice(-count));
}

/** Enlarges (`factor` below 1 shows less) around a place of the clock, within what there is. */
export function zoom(view: View, at: number, factor: number, all: View): View {
  const width = Math.min(Math.max((view.to - view.from) * factor, NARROWEST), Math.max(all.to - all.from, NARROWEST));
  const share = (at - view.from) / (view.to - view.from);
  return within({ from: at - width * share, to: at + width * (1 - share) }, all);
}

/** Moves by a share of what is shown. */
export function pan(view: View, share: number, all: View): View {
  const by = (view.to - view.from) * share;
  return within({ from: view.from + by, to: view.to + by }, all);
}

function within(view: View, all: View): View {
  const width = view.to - view.from;
  if (width >= all.to - all.from) return all;
  const from = Math.min(Math.max(view.from, all.from), all.to - width);
  return { from, to: from + width };
}

/** A bar to draw. */
export interface Bar {
  track: "host" | "device";
  kind: Phase | "run" | "draft" | "idle";
  span: Span;
}

/** The bars of a step. */
export function barsOf(step: Step): Bar[] {
  const [begin, end] = step.device;
  const drafts = Math.min(step.draft_ns, end - begin);
  const bars: Bar[] = PHASES.map((phase) => ({ track: "host", kind: phase, span: step[phase] }));
  bars.push({ track: "device", kind: "run", span: [begin, end - drafts] });
  if (drafts > 0) bars.push({ track: "device", kind: "draft", span: [end - drafts, end] });
  if (step.idle_ns !== null && step.idle_ns > 0) {
    bars.push({ track: "device", kind: "idle", span: [begin - step.idle_ns, begin] });
  }
  return bars.filter(({ span }) => span[1] > span[0]);
}

/** What steps add up to. */
export interface Summary {
  steps: number;
  tokens: number;
  /** Nanoseconds that the device ran, and that it waited although there was work. */
  busy: number;
  idle: number;
  /** Of the device's time with work; null if there was none. */
  idleShare: number | null;
  /** Median length of a step on the device. */
  median: number | null;
  longestIdle: number;
}

export function summarise(steps: readonly Step[]): Summary {
  const lengths = steps.map(({ device }) => device[1] - device[0]).sort((left, right) => left - right);
  const idles = steps.map((step) => step.idle_ns ?? 0);
  const busy = lengths.reduce((sum, length) => sum + length, 0);
  const idle = idles.reduce((sum, length) => sum + length, 0);
  return {
    steps: steps.length,
    tokens: steps.reduce((sum, step) => sum + step.tokens, 0),
    busy,
    idle,
    idleShare: busy + idle > 0 ? idle / (busy + idle) : null,
    median: lengths[lengths.length >> 1] ?? null,
    longestIdle: Math.max(0, ...idles),
  };
}

/** The steps that a view shows something of. */
export function visible<S extends Step>(steps: readonly S[], view: View): S[] {
  return steps.filter((step) => {
    const from = Math.min(step.plan[0], step.device[0] - (step.idle_ns ?? 0));
    return from <= view.to && endOf(step) >= view.from;
  });
}

/** Places for the marks of an axis: 1, 2 or 5 times a power of ten apart, at most `most` of them. */
export function marks(view: View, most: number): { at: number; step: number }[] {
  const raw = (view.to - view.from) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5, 10].find((times) => times * power >= raw) ?? 10);
  const found: { at: number; step: number }[] = [];
  for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) found.push({ at, step });
  return found;
}
