// What the page shows, as signals. Who changes them: `actions.ts` and `live.ts`.

import { computed, effect, signal } from "@preact/signals";
import type { Engine, Gauges, Requests } from "./api/engine";
import { recall, remember } from "./model/local";
import type { Option } from "./model/options";
import { fieldsOf, NO_SETTINGS, type Settings } from "./model/settings";
import type { ShownStep } from "./model/timeline";
import { type Conversation, path } from "./model/tree";

export const VIEWS = ["chat", "pipeline", "engine"] as const;
export type View = (typeof VIEWS)[number];

const viewOf = (hash: string): View => VIEWS.find((view) => `#${view}` === hash) ?? "chat";

export const view = signal<View>(viewOf(location.hash));
addEventListener("hashchange", () => {
  view.value = viewOf(location.hash);
});

/** The newest first. */
export const conversations = signal<Conversation[]>([]);
export const currentId = signal<string | null>(null);
export const current = computed(() => conversations.value.find(({ id }) => id === currentId.value) ?? null);
/** The messages that are shown. */
export const thread = computed(() => (current.value === null ? [] : path(current.value)));

/** Settings of the next conversation; each keeps its own from its first message on. */
export const nextSettings = signal<Settings>(NO_SETTINGS);
export const settings = computed(() => current.value?.settings ?? nextSettings.value);

/** What the server offers. */
export const engine = signal<Engine | null>(null);
/** When it was started, by the clock of this browser. */
export const started = signal<Date | null>(null);
export const engineError = signal<string | null>(null);
export const options = signal<Option[]>([]);
/** Whether the server tells how it runs. */
export const online = signal<"connecting" | "open" | "closed">("connecting");

/** Settings as fields of a request, with what is wrong with them. */
export const fields = computed(() => fieldsOf(settings.value, options.value));

export const steps = signal<ShownStep[]>([]);
export const lostSteps = signal(0);
export const gauges = signal<Gauges[]>([]);
export const requests = signal<Requests | null>(null);

/** What can be stopped, by the message that it writes. */
export const running = signal<ReadonlyMap<string, AbortController>>(new Map());

/** Whether something is written into what is shown. */
export const busy = computed(() => thread.value.some(({ id }) => running.value.has(id)));

/** A switch that the browser remembers. */
function kept(name: string, initially: boolean) {
  const value = signal((recall(name) ?? String(initially)) === "true");
  effect(() => remember(name, String(value.value)));
  return value;
}

/** Whether tokens have the colours of their origins. */
export const colours = kept("colours", true);
/** Whether every answer is run again without drafts and compared. */
export const twins = kept("twins", false);

/** What is over the page, if anything. */
export type Sheet = "none" | "conversations" | "inspector" | "keys";
export const sheet = signal<Sheet>("none");

/** Windows in which the columns at the sides are beside the chat, and not over it; as in narrow.css. */
const BESIDE = { conversations: matchMedia("(min-width: 821px)"), inspector: matchMedia("(min-width: 1181px)") };

/** Puts something over the page, unless it is beside the chat anyway. */
export function open(which: Exclude<Sheet, "none">): void {
  sheet.value = which !== "keys" && BESIDE[which].matches ? "none" : which;
}

for (const [which, window] of Object.entries(BESIDE)) {
  window.addEventListener("change", () => {
    if (sheet.value === which) sheet.value = "none";
  });
}

export const inspectorTab = signal<"drafts" | "settings">("drafts");

/** What was last told to the person, also to those who listen. */
export const notice = signal<{ text: string; undo?: () => void } | null>(null);

let fading = 0;
export function tell(text: string, undo?: () => void): void {
  notice.value = undo === undefined ? { text } : { text, undo };
  clearTimeout(fading);
  fading = setTimeout(() => {
    notice.value = null;
  }, 6000) as unknown as number;
}

/** Light, dark, or as the system has it. */
export type Theme = "system" | "light" | "dark";
const known = recall("theme");
export const theme = signal<Theme>(known === "light" || known === "dark" ? known : "system");

const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
const systemTheme = signal(systemIsDark.matches ? "dark" : "light");
systemIsDark.addEventListener("change", () => {
  systemTheme.value = systemIsDark.matches ? "dark" : "light";
});

/** The theme that is shown; the style sheet and what is drawn follow it. */
export const shownTheme = computed(() => (theme.value === "system" ? systemTheme.value : theme.value));
effect(() => {
  remember("theme", theme.value === "system" ? "" : theme.value);
  document.documentElement.dataset["theme"] = shownTheme.value;
});
