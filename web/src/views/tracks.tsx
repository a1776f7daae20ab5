// Host and device on one clock, drawn on a canvas: what each did, and in red where the device had to wait.

import { useLayoutEffect } from "preact/hooks";
import type { Step } from "../api/engine";
import { nanoseconds } from "../model/format";
import { type Bar, barsOf, marks, type ShownStep, type View, visible } from "../model/timeline";
import { colour, useCanvas } from "../ui/canvas";

/** Measures of the drawing, in pixels. */
interface Layout {
  height: number;
  axis: number;
  host: [number, number];
  device: [number, number];
  tokens: [number, number] | null;
}

const FULL: Layout = { height: 216, axis: 22, host: [34, 44], device: [92, 54], tokens: [160, 46] };
const COMPACT: Layout = { height: 64, axis: 0, host: [4, 22], device: [32, 28], tokens: null };

const COLOURS: Record<Bar["kind"], string> = {
  plan: "--host-plan",
  submit: "--host-submit",
  wait: "--host-wait",
  collect: "--host-collect",
  emit: "--host-emit",
  run: "--accent",
  draft: "--o-neural",
  idle: "--red",
};

interface TracksProps {
  steps: readonly ShownStep[];
  view: View;
  compact?: boolean;
  /** The step to set off. */
  chosen?: number | null;
}

export function Tracks({ steps, view, compact = false, chosen = null }: TracksProps) {
  const layout = compact ? COMPACT : FULL;
  const { ref, draw } = useCanvas(layout.height, (context, width) => {
    const x = (at: number) => ((at - view.from) / (view.to - view.from)) * width;
    const shown = visible(steps, view);
    ground(context, layout, width);
    if (!compact) axis(context, layout, width, view, x);
    for (const step of shown) {
      for (const bar of barsOf(step)) drawBar(context, layout, bar, x, chosen === null || chosen === step.step);
    }
    // Waiting is what to look for: it is never hidden by what is beside it.
    for (const step of shown) idle(context, layout, step, x);
    for (const step of shown) drawPause(context, layout, step, x);
    if (layout.tokens !== null) drawTokens(context, layout.tokens, shown, x);
    if (!compact) numbers(context, layout, shown, x);
  });
  useLayoutEffect(draw, [view.from, view.to, steps, chosen]);
  return (
    <div class={compact ? "tracks compact" : "tracks"} aria-hidden="true">
      <canvas ref={ref} />
    </div>
  );
}

type Place = (at: number) => number;

function ground(context: CanvasRenderingContext2D, layout: Layout, width: number): void {
  context.fillStyle = colour("--track");
  for (const lane of [layout.host, layout.device, layout.tokens]) {
    if (lane !== null) context.fillRect(0, lane[0], width, lane[1]);
  }
}

function axis(context: CanvasRenderingContext2D, layout: Layout, width: number, view: View, x: Place): void {
  context.font = `11px ${colour("--font")}`;
  context.textBaseline = "middle";
  const all = marks(view, width / 110);
  const first = all[0]?.at ?? 0;
  for (const { at } of all) {
    context.fillStyle = colour("--line");
    context.fillRect(Math.round(x(at)), layout.axis - 4, 1, layout.height);
    context.fillStyle = colour("--ink-3");
    const text = at === first ? "0" : `+${nanoseconds(at - first)}`;
    const left = Math.round(x(at)) + 4;
    if (left + context.measureText(text).width <= width) context.fillText(text, left, layout.axis / 2);
  }
}

function drawBar(context: CanvasRenderingContext2D, layout: Layout, bar: Bar, x: Place, strong: boolean): void {
  if (bar.kind === "idle") return;
  const [top, height] = bar.track === "host" ? layout.host : layout.device;
  const [from, to] = [x(bar.span[0]), x(bar.span[1])];
  const width = Math.max(0.75, to - from - (to - from > 4 ? 1 : 0));
  context.globalAlpha = strong ? 1 : 0.4;
  if (bar.kind === "wait") {
    // The host has nothing to do: hollow.
    context.strokeStyle = colour(COLOURS.wait);
    context.lineWidth = 1;
    if (width > 3) context.strokeRect(from + 0.5, top + height / 2 - 3.5, width - 1, 7);
  } else {
    context.fillStyle = colour(COLOURS[bar.kind]);
    context.fillRect(from, top, width, height);
  }
  context.globalAlpha = 1;
}

function idle(context: CanvasRenderingContext2D, layout: Layout, step: Step, x: Place): void {
  if (step.idle_ns === null || step.idle_ns <= 0) return;
  const [top, height] = layout.device;
  const [from, to] = [x(step.device[0] - step.idle_ns), x(step.device[0])];
  // Less than a pixel is a paler pixel, so that it looks like as much as it is.
  context.globalAlpha = Math.max(0.2, Math.min(1, to - from));
  context.fillStyle = colour("--red");
  context.fillRect(from, top, Math.max(1, to - from), height);
  context.globalAlpha = 1;
}

/** A dashed line where time without work was left out. */
function drawPause(context: CanvasRenderingContext2D, layout: Layout, step: ShownStep, x: Place): void {
  if (step.pause === 0) return;
  const at = Math.round(x(Math.min(step.plan[0], step.device[0])) - 3) + 0.5;
  context.strokeStyle = colour("--ink-3");
  context.setLineDash([2, 3]);
  context.beginPath();
  context.moveTo(at, layout.host[0]);
  context.lineTo(at, layout.height);
  context.stroke();
  context.setLineDash([]);
}

/** How many tokens each step decoded, those of refused drafts pale. A prompt would dwarf them: it is as high as it gets. */
function drawTokens(context: CanvasRenderingContext2D, [top, height]: [number, number], shown: Step[], x: Place): void {
  const most = Math.max(8, ...shown.map((step) => step.tokens - step.prompt_tokens));
  for (const step of shown) {
    const [from, to] = [x(step.device[0]), x(step.device[1])];
    const refused = step.drafted - step.accepted;
    const full = ((step.tokens - step.prompt_tokens - refused) / most) * height;
    const rest = (refused / most) * height;
    const width = Math.max(0.75, to - from - (to - from > 4 ? 1 : 0));
    context.fillStyle = colour("--line-2");
    if (step.prompt_tokens > 0) context.fillRect(from, top, width, height);
    context.fillStyle = colour("--ink-3");
    context.fillRect(from, top + height - full, width, full);
    context.fillStyle = colour("--line-2");
    context.fillRect(from, top + height - full - rest, width, rest);
  }
}

/** The numbers of steps, where they fit. */
function numbers(context: CanvasRenderingContext2D, layout: Layout, shown: Step[], x: Place): void {
  context.font = `600 11px ${colour("--font")}`;
  context.textBaseline = "middle";
  context.fillStyle = colour("--on-accent");
  const [top, height] = layout.device;
  for (const step of shown) {
    const [from, to] = [x(step.device[0]), x(step.device[1])];
    const text = String(step.step);
    if (to - from > context.measureText(text).width + 14) context.fillText(text, from + 7, top + height / 2);
  }
}

/** The step on the device at a place of the clock. */
export function stepAt(all: readonly Step[], at: number): Step | null {
  return all.find((step) => at >= step.device[0] - (step.idle_ns ?? 0) && at <= step.device[1]) ?? null;
}
