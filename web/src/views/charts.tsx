// Figures of the last two minutes, live.

import type { Gauges } from "../api/engine";
import { byPosition, ceiling, draw } from "../model/charts";
import { duration, percent, short } from "../model/format";
import { gauges } from "../state";

interface Chart {
  name: string;
  of: (sample: Gauges) => number | null;
  show: (value: number) => string;
  /** The end of the scale, if it is not the largest value. */
  most?: (sample: Gauges) => number;
  least: number;
}

const CHARTS: Chart[] = [
  { name: "Tokens per second", of: (sample) => sample.tokens_per_second, show: short, least: 10 },
  { name: "Time to first token", of: (sample) => sample.time_to_first_token_ms, show: duration, least: 1 },
  {
    name: "Requests in the batch",
    of: (sample) => sample.running,
    show: short,
    most: (sample) => sample.slots,
    least: 1,
  },
  {
    name: "Cache blocks",
    of: (sample) => sample.blocks.used / Math.max(1, sample.blocks.total),
    show: percent,
    most: () => 1,
    least: 1,
  },
  {
    name: "Snapshots",
    of: (sample) => (sample.snapshots.total === 0 ? null : sample.snapshots.used / sample.snapshots.total),
    show: percent,
    most: () => 1,
    least: 1,
  },
  { name: "Device busy", of: (sample) => Math.min(1, sample.device_busy), show: percent, most: () => 1, least: 1 },
];

const WIDTH = 240;
const HEIGHT = 56;

export function Charts() {
  return (
    <section class="charts" aria-label="Figures of the last two minutes">
      {CHARTS.map((chart) => (
        <LineChart key={chart.name} chart={chart} />
      ))}
      <Acceptance />
    </section>
  );
}

function LineChart({ chart }: { chart: Chart }) {
  const samples = gauges.value;
  const values = samples.map(chart.of);
  const last = samples.at(-1);
  const most = last !== undefined && chart.most !== undefined ? chart.most(last) : ceiling(values, chart.least);
  const newest = values.findLast((value) => value !== null) ?? null;
  const peak = Math.max(0, ...values.map((value) => value ?? 0));
  const { line, area, dots } = draw(values, most, WIDTH, HEIGHT);
  return (
    <figure class="chart">
      <figcaption>
        <span>{chart.name}</span>
        <strong>{newest === null ? "–" : chart.show(newest)}</strong>
      </figcaption>
      <svg
        viewBox={`0 -2 ${WIDTH} ${HEIGHT + 4}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={`${chart.name}: now ${newest === null ? "nothing" : chart.show(newest)}, at most ${chart.show(peak)}`}
      >
        <path class="chart-area" d={area} />
        <path class="chart-line" d={line} />
        <path class="chart-line chart-dots" d={dots} />
      </svg>
      <span class="chart-scale">peak {chart.show(peak)}</span>
    </figure>
  );
}

/** How often a draft is accepted, by its place in the window. */
function Acceptance() {
  const places = byPosition(gauges.value);
  const label = places
    .map(({ drafted, accepted }, place) => `draft ${place + 1}: ${accepted} of ${drafted}`)
    .join(", ");
  const all = places.reduce((sum, { drafted }) => sum + drafted, 0);
  const good = places.reduce((sum, { accepted }) => sum + accepted, 0);
  return (
    <figure class="chart">
      <figcaption>
        <span>Acceptance by position</span>
        <strong>{all === 0 ? "–" : percent(good / all)}</strong>
      </figcaption>
      <div class="acceptance" role="img" aria-label={label || "no drafts yet"}>
        {places.map(({ drafted, accepted }, place) => (
          <span key={place}>
            <i style={{ height: `${drafted === 0 ? 0 : (accepted / drafted) * 100}%` }} />
          </span>
        ))}
      </div>
      <span class="chart-scale">
        {places.length === 0 ? "no drafts yet" : `drafts 1 to ${places.length} of a window`}
      </span>
    </figure>
  );
}
