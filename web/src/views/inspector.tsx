// Beside the chat: how the newest answer came about, and the settings of the conversation.

import { count, duration, percent, rateOf, short } from "../model/format";
import { countOrigins, ESTIMATED, ORIGIN_WORDS, ORIGINS, type OriginStep } from "../model/origins";
import { latest, summarise } from "../model/timeline";
import type { Answer } from "../model/tree";
import { colours, engine, inspectorTab, sheet, steps, thread, twins } from "../state";
import { Figure, IconButton, Switch } from "../ui/parts";
import { SettingsForm } from "./settings";
import { Tracks } from "./tracks";

const TABS = { drafts: "Drafts", settings: "Settings" } as const;

export function Inspector() {
  const tab = inspectorTab.value;
  const names = Object.keys(TABS) as (keyof typeof TABS)[];
  const onKey = (event: KeyboardEvent) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    inspectorTab.value = tab === "drafts" ? "settings" : "drafts";
    requestAnimationFrame(() => document.getElementById(`tab-${inspectorTab.value}`)?.focus());
  };
  return (
    <aside class="inspector" id="inspector" aria-label="Drafts and settings">
      <div class="inspector-head">
        <div class="inspector-tabs" role="tablist" aria-label="Drafts and settings" onKeyDown={onKey}>
          {names.map((name) => (
            <button
              type="button"
              role="tab"
              key={name}
              id={`tab-${name}`}
              aria-selected={tab === name}
              aria-controls="inspector-panel"
              tabIndex={tab === name ? 0 : -1}
              onClick={() => (inspectorTab.value = name)}
            >
              {TABS[name]}
            </button>
          ))}
        </div>
        <span class="only-medium">
          <IconButton icon="close" label="Close" onClick={() => (sheet.value = "none")} />
        </span>
      </div>
      <div class="inspector-panel" id="inspector-panel" role="tabpanel" aria-labelledby={`tab-${tab}`} tabIndex={0}>
        {tab === "drafts" ? <Drafts /> : <SettingsForm />}
      </div>
    </aside>
  );
}

function Drafts() {
  const answer = thread.value.findLast((message) => message.answer !== undefined)?.answer ?? null;
  return (
    <>
      {answer === null ? (
        <Meanings />
      ) : (
        <>
          <Speed answer={answer} />
          <Legend steps={answer.steps} />
          <Windows steps={answer.steps} />
        </>
      )}
      <section>
        <Switch
          label="Colour the tokens"
          on={colours.value}
          onChange={(on) => {
            colours.value = on;
          }}
        />
        <Switch
          label="Run without drafts beside it"
          help="Every answer is computed a second time, with the same seed and no drafts, and the two texts are compared."
          on={twins.value}
          onChange={(on) => {
            twins.value = on;
          }}
        />
      </section>
      <MiniPipeline />
    </>
  );
}

/** What the colours will mean, before there is an answer. */
function Meanings() {
  return (
    <section>
      <h2>How tokens come</h2>
      <dl class="meanings">
        {ORIGINS.map((origin) => (
          <div key={origin}>
            <dt>
              <span class={`swatch o-${origin}`} /> {ORIGIN_WORDS[origin].name}
            </dt>
            <dd>{ORIGIN_WORDS[origin].meaning}</dd>
          </div>
        ))}
      </dl>
      <p class="help">Drafts change the time, never the text.</p>
    </section>
  );
}

function Speed({ answer }: { answer: Answer }) {
  const usage = answer.usage?.speculation;
  const rate = rateOf(answer.usage?.completion_tokens ?? 0, answer.totalMs);
  return (
    <section>
      <h2>This answer</h2>
      <dl class="figures">
        <Figure name="Tokens per step" value={usage === undefined ? "–" : usage.mean_acceptance_length.toFixed(2)} />
        <Figure
          name={usage !== undefined && usage.ms_saved < 0 ? "Time lost" : "Time saved"}
          value={usage === undefined ? "–" : `≈ ${duration(Math.abs(usage.ms_saved))}`}
          title={ESTIMATED}
        />
        <Figure name="Speed" value={rate === null ? "–" : short(rate)} unit="tok/s" />
        <Figure name="First token" value={answer.firstMs === null ? "–" : duration(answer.firstMs)} />
      </dl>
    </section>
  );
}

function Legend({ steps: list }: { steps: OriginStep[] }) {
  const { by, tokens } = countOrigins(list);
  const neural = engine.value?.speculation.configuration.neural;
  return (
    <section>
      <h2>How its tokens came</h2>
      <ul class="legend">
        {ORIGINS.map((origin) => (
          <li key={origin} title={ORIGIN_WORDS[origin].meaning}>
            <span class={`swatch o-${origin}`} />
            <span class="legend-name">
              {ORIGIN_WORDS[origin].name}
              {origin === "neural" && neural ? <small> {neural}</small> : null}
            </span>
            <span class="legend-bar">
              <span class={`part-${origin}`} style={{ width: `${tokens === 0 ? 0 : (by[origin] / tokens) * 100}%` }} />
            </span>
            <span class="legend-count" data-origin={origin}>
              {by[origin]}
            </span>
          </li>
        ))}
      </ul>
    </section>
  );
}

/** How many tokens steps gave: 1 is what an engine without drafts always gets. */
function Windows({ steps: list }: { steps: OriginStep[] }) {
  const decodes = list.filter((step) => step.kind === "decode" && step.tokens.length > 0);
  if (decodes.length === 0) return null;
  const sizes = decodes.map((step) => step.tokens.length);
  const most = Math.max(...sizes);
  const counts = Array.from({ length: most }, (_, index) => sizes.filter((size) => size === index + 1).length);
  const tallest = Math.max(...counts);
  const { drafted, accepted } = countOrigins(list);
  const label = counts.map((steps, index) => `${count(steps, "step")} with ${count(index + 1, "token")}`).join(", ");
  return (
    <section>
      <h2>Tokens per step</h2>
      <div class="histogram" role="img" aria-label={label}>
        {counts.map((steps, index) => (
          <span key={index} class="histogram-column">
            <i style={{ height: `${(steps / tallest) * 48}px` }} />
            <b>{index + 1}</b>
          </span>
        ))}
      </div>
      <p class="help">
        {accepted} of {count(drafted, "draft token")} accepted
        {drafted > 0 ? ` (${percent(accepted / drafted)})` : ""} in {count(decodes.length, "step")}.
      </p>
    </section>
  );
}

function MiniPipeline() {
  const shown = latest(steps.value, 24);
  const { idleShare, steps: number } = summarise(steps.value);
  return (
    <section>
      <h2>
        Pipeline <a href="#pipeline">open</a>
      </h2>
      {shown === null ? (
        <p class="help">Steps appear here while the engine runs.</p>
      ) : (
        <>
          <Tracks steps={steps.value} view={shown} compact />
          <p class="help">
            The device was idle for <strong>{idleShare === null ? "–" : percent(idleShare)}</strong> of its time with
            work in the last {count(number, "step")}.
          </p>
        </>
      )}
    </section>
  );
}
