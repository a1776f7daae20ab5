// The pipeline: the last few hundred steps of host and device, to look into, and figures as they change.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { getTrace, PHASES, type Step } from "../api/engine";
import { count, nanoseconds, percent, short } from "../model/format";
import { bounds, latest, pan, type ShownStep, summarise, type View, zoom } from "../model/timeline";
import { lostSteps, steps, tell } from "../state";
import { download, Figure, IconButton } from "../ui/parts";
import { byTouch } from "../ui/pointer";
import { Charts } from "./charts";
import { StepTable } from "./step-table";
import { stepAt, Tracks } from "./tracks";

/** Steps that are shown before a person has chosen. */
const AT_FIRST = 60;

export function Pipeline() {
  return (
    <main class="page" id="main" aria-label="Pipeline">
      <Timeline />
      <Charts />
    </main>
  );
}

async function exportTrace(): Promise<void> {
  try {
    download("paceline-trace.json", await getTrace());
    tell("Trace exported. Open it at ui.perfetto.dev or chrome://tracing.");
  } catch (error) {
    tell(error instanceof Error ? error.message : String(error));
  }
}

/** The numbers over the tracks. */
function Summary({ shown }: { shown: readonly ShownStep[] }) {
  const { idleShare, steps: number, median, longestIdle, tokens } = summarise(shown);
  return (
    <dl class="figures wide">
      <Figure name="Device idle with work waiting" value={idleShare === null ? "–" : percent(idleShare)} />
      <Figure name="Longest wait" value={number === 0 ? "–" : nanoseconds(longestIdle)} />
      <Figure name="Median step" value={median === null ? "–" : nanoseconds(median)} />
      <Figure name="Tokens per step" value={number === 0 ? "–" : short(tokens / number)} />
      <Figure name="Steps shown" value={String(number)} />
    </dl>
  );
}

function Timeline() {
  const chosen = useSignal<View | null>(null);
  const hovered = useSignal<Step | null>(null);
  // While a person looks closer, the steps stay that were there: new ones would push them out.
  const held = useSignal<ShownStep[] | null>(null);
  const list = held.value ?? steps.value;
  const all = bounds(list);
  const shown = chosen.value ?? latest(list, AT_FIRST);
  const look = (at: View | null) => {
    held.value ??= steps.value;
    chosen.value = at;
  };
  const change = (how: (view: View, all: View) => View) => {
    if (shown !== null && all !== null) look(how(shown, all));
  };
  const follow = () => {
    chosen.value = null;
    held.value = null;
  };
  return (
    <section class="timeline" aria-labelledby="timeline-title">
      <div class="page-head">
        <div>
          <h1 id="timeline-title">Pipeline</h1>
          <p class="lead">
            The host plans step N + 1 while the device runs step N. Red is time in which the device waited although
            there was work.
          </p>
        </div>
        <span class="toolbar" role="toolbar" aria-label="Timeline">
          <IconButton
            icon={chosen.value === null ? "pause" : "play"}
            text={chosen.value === null ? "Hold" : "Follow"}
            label={chosen.value === null ? "Hold still" : "Follow the newest steps"}
            disabled={shown === null}
            onClick={chosen.value === null ? () => look(shown) : follow}
          />
          <IconButton icon="zoomIn" label="Zoom in (+)" disabled={shown === null} onClick={() => change(zoomBy(0.5))} />
          <IconButton icon="zoomOut" label="Zoom out (−)" disabled={shown === null} onClick={() => change(zoomBy(2))} />
          <IconButton icon="fit" label="All steps (0)" disabled={shown === null} onClick={() => look(all)} />
          <IconButton
            icon="download"
            text="Export trace"
            label="Export the trace for Perfetto"
            disabled={shown === null}
            onClick={() => void exportTrace()}
          />
        </span>
      </div>
      <Summary shown={list} />
      {shown === null ? (
        <p class="nothing">No step has run since this page was opened. Ask something in the chat.</p>
      ) : (
        <Stage steps={list} view={shown} change={change} hovered={hovered} follow={follow} all={() => look(all)} />
      )}
      <Key />
      <StepTable />
      {lostSteps.value > 0 && <p class="help">{count(lostSteps.value, "step")} came too fast to be shown.</p>}
    </section>
  );
}

const zoomBy =
  (factor: number, share = 0.5) =>
  (view: View, all: View) =>
    zoom(view, view.from + (view.to - view.from) * share, factor, all);

interface StageProps {
  steps: readonly ShownStep[];
  view: View;
  change: (how: (view: View, all: View) => View) => void;
  hovered: { value: Step | null };
  follow: () => void;
  all: () => void;
}

/** The tracks, and what pointers, wheels, fingers and keys do to them. */
function Stage({ steps: list, view, change, hovered, follow, all }: StageProps) {
  const box = useRef<HTMLDivElement>(null);
  usePointers(box, list, view, change, hovered);
  const onKey = (event: KeyboardEvent) => {
    const acts: Record<string, () => void> = {
      ArrowLeft: () => change((now, whole) => pan(now, -0.2, whole)),
      ArrowRight: () => change((now, whole) => pan(now, 0.2, whole)),
      "+": () => change(zoomBy(0.5)),
      "=": () => change(zoomBy(0.5)),
      "-": () => change(zoomBy(2)),
      "0": all,
      Home: () => change((now, whole) => pan(now, -1e9, whole)),
      End: follow,
    };
    const act = acts[event.key];
    if (act === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  };
  return (
    <div
      class="stage"
      ref={box}
      tabIndex={0}
      role="application"
      aria-label="Timeline of host and device. Arrows move it, plus and minus zoom, 0 shows all steps, End follows the newest. The table below has the same steps as text."
      onKeyDown={onKey}
    >
      <div class="lanes" aria-hidden="true">
        <span>Host</span>
        <span>Device</span>
        <span>Tokens</span>
      </div>
      <Tracks steps={list} view={view} chosen={hovered.value?.step ?? null} />
      <p class="stage-note" aria-live="off">
        {hovered.value === null
          ? `${nanoseconds(view.to - view.from)} shown · ${byTouch() ? "pinch" : "wheel"} zooms, drag moves`
          : told(hovered.value)}
      </p>
    </div>
  );
}

/** A step in one line. */
export function told(step: Step): string {
  const host = PHASES.filter((phase) => phase !== "wait").reduce(
    (sum, phase) => sum + step[phase][1] - step[phase][0],
    0,
  );
  const parts = [
    `step ${step.step}`,
    count(step.rows, "request"),
    count(step.tokens, "token"),
    step.drafted > 0 ? `${step.accepted} of ${step.drafted} drafts accepted` : "",
    `device ${nanoseconds(step.device[1] - step.device[0])}`,
    `host ${nanoseconds(host)}`,
    step.idle_ns === null ? "" : `idle before it ${nanoseconds(step.idle_ns)}`,
  ];
  return parts.filter((part) => part !== "").join(" · ");
}

function usePointers(
  box: { current: HTMLDivElement | null },
  list: readonly ShownStep[],
  view: View,
  change: StageProps["change"],
  hovered: StageProps["hovered"],
): void {
  const now = useRef({ list, view, change });
  now.current = { list, view, change };
  useEffect(() => {
    const element = box.current;
    if (element === null) return;
    const fingers = new Map<number, number>();
    const shareOf = (x: number) => {
      const { left, width } = (element.querySelector("canvas") ?? element).getBoundingClientRect();
      return (x - left) / width;
    };
    const wheel = (event: WheelEvent) => {
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        now.current.change((old, all) => pan(old, event.deltaX / element.clientWidth, all));
      } else now.current.change(zoomBy(1.0015 ** event.deltaY, shareOf(event.clientX)));
    };
    const down = (event: PointerEvent) => {
      element.setPointerCapture(event.pointerId);
      fingers.set(event.pointerId, event.clientX);
    };
    const move = (event: PointerEvent) => {
      const before = fingers.get(event.pointerId);
      if (before === undefined) {
        const { from, to } = now.current.view;
        hovered.value = stepAt(now.current.list, from + (to - from) * shareOf(event.clientX));
        return;
      }
      const other = [...fingers].find(([id]) => id !== event.pointerId)?.[1];
      fingers.set(event.pointerId, event.clientX);
      if (other === undefined) {
        now.current.change((old, all) => pan(old, (before - event.clientX) / element.clientWidth, all));
      } else {
        const factor = Math.abs(before - other) / Math.max(1, Math.abs(event.clientX - other));
        now.current.change(zoomBy(factor, shareOf((event.clientX + other) / 2)));
      }
    };
    const up = (event: PointerEvent) => fingers.delete(event.pointerId);
    const leave = () => {
      hovered.value = null;
    };
    element.addEventListener("wheel", wheel, { passive: false });
    const listeners = {
      pointerdown: down,
      pointermove: move,
      pointerup: up,
      pointercancel: up,
      pointerleave: leave,
    };
    for (const [name, listener] of Object.entries(listeners)) element.addEventListener(name, listener as EventListener);
    return () => {
      element.removeEventListener("wheel", wheel);
      for (const [name, listener] of Object.entries(listeners)) {
        element.removeEventListener(name, listener as EventListener);
      }
    };
  }, []);
}

const KINDS = [
  ["plan", "plan"],
  ["submit", "submit"],
  ["wait", "wait for the device"],
  ["collect", "collect"],
  ["emit", "emit"],
  ["run", "device runs"],
  ["draft", "device drafts"],
  ["idle", "device idle"],
] as const;

function Key() {
  return (
    <ul class="key" aria-label="Colours of the timeline">
      {KINDS.map(([kind, words]) => (
        <li key={kind}>
          <span class={`key-swatch key-${kind}`} /> {words}
        </li>
      ))}
    </ul>
  );
}
