// Keeps what is known of the server current: its state once, its steps while the page is looked at.

import { effect } from "@preact/signals";
import { follow, getDescription, getEngine, getRequests, type Listener } from "./api/engine";
import { apiKey, keyWanted, ServerError } from "./api/http";
import { optionsOf } from "./model/options";
import { extend } from "./model/timeline";
import { engine, engineError, gauges, lostSteps, online, options, requests, started, steps, view } from "./state";

/** Two minutes of them. */
const MOST_GAUGES = 240;

/** Between attempts to connect, in milliseconds. */
const RETRY = { first: 500, most: 10_000 };

const listener: Listener = {
  steps(fresh, lost) {
    if (fresh.length > 0) steps.value = extend(steps.value, fresh);
    lostSteps.value += lost;
  },
  gauges(sample) {
    gauges.value = [...gauges.value, sample].slice(-MOST_GAUGES);
  },
};

const sleep = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

/** The server's own account of itself. */
async function loadEngine(): Promise<void> {
  try {
    const told = await getEngine();
    started.value = new Date(Date.now() - told.uptime_seconds * 1000);
    engine.value = told;
    engineError.value = null;
    if (options.value.length === 0) options.value = optionsOf(await getDescription());
  } catch (error) {
    engineError.value = error instanceof Error ? error.message : String(error);
  }
}

/** Follows the engine, again and again, until `signal` ends. */
async function followOn(signal: AbortSignal): Promise<void> {
  let pause = RETRY.first;
  while (!signal.aborted) {
    const begun = Date.now();
    try {
      online.value = online.value === "open" ? "open" : "connecting";
      await loadEngine();
      if (engine.value !== null && engineError.value === null) online.value = "open";
      await follow(listener, signal);
    } catch (error) {
      if (signal.aborted) return;
      // Without an event stream (an older server, or one behind a proxy), chat still works.
      if (error instanceof ServerError && error.status === 404) return;
      if (keyWanted.value) return;
    }
    if (signal.aborted) return;
    online.value = "closed";
    pause = Date.now() - begun > RETRY.most ? RETRY.first : Math.min(pause * 2, RETRY.most);
    await sleep(pause);
  }
}

/** Looks while the page is visible, with the key that there is. */
export function startLooking(): void {
  let looking: AbortController | null = null;
  const look = () => {
    looking?.abort();
    looking = null;
    if (document.visibilityState === "hidden") return;
    looking = new AbortController();
    void followOn(looking.signal);
  };
  document.addEventListener("visibilitychange", look);
  effect(() => {
    void apiKey.value;
    look();
  });
  effect(() => {
    if (view.value === "engine") void pollRequests();
  });
}

/** The running requests, while they are on the screen. */
async function pollRequests(): Promise<void> {
  while (view.value === "engine") {
    if (document.visibilityState === "visible") await loadRequests();
    await sleep(500);
  }
}

export async function loadRequests(): Promise<void> {
  try {
    requests.value = await getRequests();
  } catch {
    requests.value = null;
  }
}
