// The engine: what is on and why, where the memory is, what runs.

import { useSignal } from "@preact/signals";
import { cancelRequest, type Engine, type RunningRequest } from "../api/engine";
import { loadRequests } from "../live";
import { bytes, count, duration, percent } from "../model/format";
import { engine, engineError, requests, started, tell } from "../state";
import { StackedBar } from "../ui/parts";

export function EngineView() {
  const known = engine.value;
  return (
    <main class="page" id="main" aria-label="Engine">
      <div class="page-head">
        <div>
          <h1>Engine</h1>
          <p class="lead">{known === null ? (engineError.value ?? "Asking the server") : <Lead known={known} />}</p>
        </div>
      </div>
      <Requests />
      {known !== null && <Memory memory={known.memory} />}
      {known !== null && <Features />}
    </main>
  );
}

function Lead({ known }: { known: Engine }) {
  const { model, device } = known;
  const start = started.value;
  return (
    <>
      {model.source} on {device.name}: {device.description}.
      {start !== null && (
        <>
          {" "}
          Up since <time dateTime={start.toISOString()}>{start.toLocaleString()}</time>.
        </>
      )}
    </>
  );
}

function Requests() {
  const listed = requests.value;
  const others = (listed?.others.running ?? 0) + (listed?.others.waiting ?? 0);
  return (
    <section aria-labelledby="requests-title">
      <h2 id="requests-title">Requests</h2>
      {listed === null || listed.requests.length === 0 ? (
        <p class="nothing small">Nothing runs{others > 0 ? " of yours" : ""}.</p>
      ) : (
        <div class="table-scroll" tabIndex={0} role="region" aria-label="Running requests">
          <table class="requests">
            <thead>
              <tr>
                <th>Request</th>
                <th>State</th>
                <th>Prompt</th>
                <th>Generated</th>
                <th>First token</th>
                <th>Age</th>
                <th>
                  <span class="unseen">Action</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {listed.requests.map((request) => (
                <RequestRow key={request.id} request={request} />
              ))}
            </tbody>
          </table>
        </div>
      )}
      {others > 0 && <p class="help">{count(others, "request")} of other keys.</p>}
    </section>
  );
}

async function cancel(id: string): Promise<void> {
  try {
    await cancelRequest(id);
    tell("Request cancelled.");
  } catch (error) {
    tell(error instanceof Error ? error.message : String(error));
  }
  await loadRequests();
}

function RequestRow({ request }: { request: RunningRequest }) {
  const share = request.max_tokens > 0 ? Math.min(1, request.generated_tokens / request.max_tokens) : 0;
  return (
    <tr>
      <td>
        <code>{request.id}</code>
      </td>
      <td>{request.state}</td>
      <td>
        {request.prompt_tokens_done} / {request.prompt_tokens}
      </td>
      <td>
        <span class="progress">
          <span style={{ width: `${share * 100}%` }} />
        </span>
        {request.generated_tokens} / {request.max_tokens}
      </td>
      <td>{request.first_token_ms === null ? "–" : duration(request.first_token_ms)}</td>
      <td>{duration(request.age_ms)}</td>
      <td>
        <button type="button" class="plain danger" onClick={() => void cancel(request.id)}>
          Cancel<span class="unseen"> {request.id}</span>
        </button>
      </td>
    </tr>
  );
}

const PARTS: [string, string][] = [
  ["weights", "Weights"],
  ["blocks", "KV blocks"],
  ["snapshots", "Snapshots"],
  ["states", "States"],
  ["rings", "Rings"],
  ["ngram_index", "N-gram index"],
  ["scratch", "Scratch"],
];

function Memory({ memory }: { memory: Record<string, number> }) {
  const total = memory["total"] ?? 0;
  const parts = PARTS.map(([name, words]) => ({ name, words, size: memory[name] ?? 0 })).filter(({ size }) => size > 0);
  return (
    <section aria-labelledby="memory-title">
      <h2 id="memory-title">
        Memory{" "}
        <small>
          {bytes(total)} in all, {bytes(memory["budget"] ?? total)} allowed. Nothing is allocated after the start.
        </small>
      </h2>
      <StackedBar
        label={parts.map(({ words, size }) => `${words} ${bytes(size)}`).join(", ")}
        parts={parts.map(({ name, size }) => ({ name: `memory-${name}`, share: size }))}
      />
      <ul class="memory-key">
        {parts.map(({ name, words, size }) => (
          <li key={name}>
            <span class={`key-swatch part-memory-${name}`} />
            <span>{words}</span>
            <strong>{bytes(size)}</strong>
            <small>{percent(size / total)}</small>
          </li>
        ))}
      </ul>
    </section>
  );
}

function Features() {
  const wanted = useSignal("");
  const features = (engine.value?.features ?? []).filter(({ name, state, reason }) =>
    `${name} ${state} ${reason}`.toLowerCase().includes(wanted.value.toLowerCase()),
  );
  return (
    <section aria-labelledby="features-title">
      <div class="section-head">
        <h2 id="features-title">Features, and why they are as they are</h2>
        <input
          type="search"
          aria-label="Filter the features"
          placeholder="Filter"
          value={wanted.value}
          onInput={(event) => (wanted.value = event.currentTarget.value)}
        />
      </div>
      <table class="features">
        <thead>
          <tr>
            <th>Feature</th>
            <th>State</th>
            <th>Because of</th>
          </tr>
        </thead>
        <tbody>
          {features.map(({ name, state, reason }) => (
            <tr key={name}>
              <th scope="row">{name}</th>
              <td>{state}</td>
              <td>{reason}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}
