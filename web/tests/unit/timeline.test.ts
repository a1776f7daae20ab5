// Steps on the clock, series as lines, figures as text.

import assert from "node:assert/strict";
import { test } from "node:test";
import type { Gauges, Step } from "../../src/api/engine";
import { byPosition, ceiling, draw } from "../../src/model/charts";
import { bytes, duration, percent, rateOf, visible as shownText } from "../../src/model/format";
import {
  barsOf,
  bounds,
  extend,
  latest,
  MOST_STEPS,
  marks,
  pan,
  summarise,
  visible,
  zoom,
} from "../../src/model/timeline";

/** Steps of 100 µs, one after another, each 10 µs late unless it is the first. */
function step(number: number): Step {
  const begin = number * 110_000;
  const span = (from: number, to: number): [number, number] => [begin + from, begin + to];
  return {
    step: number,
    rows: 1,
    tokens: 3,
    prompt_tokens: 0,
    in_flight: 2,
    drafted: 2,
    accepted: 1,
    plan: span(-80_000, -70_000),
    submit: span(-70_000, -65_000),
    wait: span(-65_000, -20_000),
    collect: span(-20_000, -15_000),
    emit: span(-15_000, -15_000),
    device: span(0, 100_000),
    draft_ns: 20_000,
    idle_ns: number === 0 ? null : 10_000,
  };
}

const steps = Array.from({ length: 10 }, (_, number) => step(number));

test("idle time is what the device waited although there was work", () => {
  const { idle, busy, idleShare, steps: number, median, longestIdle } = summarise(steps);
  assert.deepEqual([idle, busy, number, median, longestIdle], [90_000, 1_000_000, 10, 100_000, 10_000]);
  assert.equal(idleShare, 90_000 / 1_090_000);
  assert.equal(summarise([]).idleShare, null);
});

test("a step is drawn as its phases, its run, its drafts and the wait before it", () => {
  const bars = barsOf(step(1));
  assert.deepEqual(
    bars.map(({ track, kind }) => `${track} ${kind}`),
    ["host plan", "host submit", "host wait", "host collect", "device run", "device draft", "device idle"],
  );
  assert.deepEqual(bars.at(-1)?.span, [100_000, 110_000]);
  assert.ok(!barsOf(step(0)).some(({ kind }) => kind === "idle"));
});

test("steps that come twice are there once, and only so many are kept", () => {
  const all = extend(extend([], steps.slice(0, 6)), steps.slice(3));
  assert.deepEqual(
    all.map((one) => one.step),
    steps.map((one) => one.step),
  );
  const many = Array.from({ length: 600 }, (_, number) => step(number));
  assert.equal(extend([], many).length, MOST_STEPS);
});

test("time without work is left out of the clock, and time that the device waited is not", () => {
  const late = (one: Step, by: number): Step => {
    const move = ([from, to]: [number, number]): [number, number] => [from + by, to + by];
    const { plan, submit, wait, collect, emit, device } = one;
    return {
      ...one,
      plan: move(plan),
      submit: move(submit),
      wait: move(wait),
      collect: move(collect),
      emit: move(emit),
      device: move(device),
    };
  };
  const second = 1_000_000_000;
  const resting = extend(extend([], [step(0)]), [{ ...late(step(1), second), idle_ns: null }, late(step(2), second)]);
  assert.deepEqual(
    resting.map(({ pause }) => pause > 0),
    [false, true, false],
  );
  assert.equal((resting[1]?.plan[0] ?? 0) - (resting[0]?.device[1] ?? 0), 150_000);
  assert.equal((resting[2]?.device[0] ?? 0) - (resting[1]?.device[1] ?? 0), 10_000);
  assert.equal((resting[2]?.device[0] ?? 0) + (resting[2]?.left ?? 0), late(step(2), second).device[0]);
  const waiting = extend(extend([], [step(0)]), [{ ...late(step(1), second), idle_ns: second }]);
  assert.equal(waiting[1]?.pause, 0);
});

test("a restarted engine begins anew", () => {
  const later = extend(
    [],
    steps.map((one) => step(one.step + 100)),
  );
  assert.deepEqual(
    extend(later, [step(0)]).map((one) => one.step),
    [0],
  );
});

test("zooming keeps the place under the pointer, within what there is", () => {
  const all = { from: 0, to: 1_000_000 };
  const near = zoom(all, 250_000, 0.5, all);
  assert.deepEqual(near, { from: 125_000, to: 625_000 });
  assert.deepEqual(zoom(near, 250_000, 100, all), all);
  assert.equal(zoom(all, 0, 1e-9, all).to, 20_000);
});

test("moving stops at the ends", () => {
  const all = { from: 0, to: 1000_000 };
  assert.deepEqual(pan({ from: 0, to: 100_000 }, -1, all), { from: 0, to: 100_000 });
  assert.deepEqual(pan({ from: 0, to: 100_000 }, 0.5, all), { from: 50_000, to: 150_000 });
  assert.deepEqual(pan({ from: 0, to: 100_000 }, 1e9, all), { from: 900_000, to: 1_000_000 });
});

test("a view has the steps that it cuts, and the newest are shown first", () => {
  assert.deepEqual(bounds([]), null);
  assert.deepEqual(
    visible(steps, { from: 150_000, to: 160_000 }).map((one) => one.step),
    [1, 2],
  );
  assert.equal(latest(steps, 2)?.to, bounds(steps)?.to);
});

test("marks of the axis are round and not too many", () => {
  const found = marks({ from: 130, to: 1130 }, 6);
  assert.deepEqual(
    found.map(({ at }) => at),
    [200, 400, 600, 800, 1000],
  );
});

test("lines have gaps where nothing was measured", () => {
  // Each stretch has its own area: nothing is painted where nothing was measured.
  assert.deepEqual(draw([0, 10, null, 5], 10, 30, 10), {
    line: "M0.0 10.0L10.0 0.0",
    area: "M0.0 10V10.0L10.0 0.0V10Z",
    dots: "M30.0 5.0h0",
  });
  assert.deepEqual(draw([null, null], 10, 30, 10), { line: "", area: "", dots: "" });
  assert.equal(ceiling([3, null, 42], 1), 50);
  assert.equal(ceiling([2011, 900], 10), 2500);
  assert.equal(ceiling([0.2], 1), 1);
});

test("acceptance by position is summed over samples", () => {
  const sample = (counts: [number, number][]) =>
    ({ drafts: { by_position: counts.map(([drafted, accepted]) => ({ drafted, accepted })) } }) as unknown as Gauges;
  assert.deepEqual(
    byPosition([
      sample([[4, 3]]),
      sample([
        [6, 3],
        [2, 1],
      ]),
    ]),
    [
      { drafted: 10, accepted: 6 },
      { drafted: 2, accepted: 1 },
    ],
  );
});

test("figures are short and have their unit", () => {
  assert.equal(duration(0.0123), "12.3 µs");
  assert.equal(duration(1234), "1.23 s");
  assert.equal(percent(0.0042), "0.4 %");
  assert.equal(rateOf(20, 200), 100);
  assert.equal(rateOf(20, null), null);
  assert.equal(rateOf(0, 200), null);
  assert.equal(bytes(451_875_252), "431 MiB");
  assert.equal(shownText(" a\n"), "·a↵");
});
