// The bar at the top: where one is, which model it is, how it runs now.

import { short } from "../model/format";
import { engine, gauges, online, open, sheet, type Theme, theme, VIEWS, type View, view } from "../state";
import { Mark } from "../ui/icons";
import { IconButton } from "../ui/parts";

const NAMES: Record<View, string> = { chat: "Chat", pipeline: "Pipeline", engine: "Engine" };

const NEXT_THEME: Record<Theme, Theme> = { system: "light", light: "dark", dark: "system" };
const THEME_ICONS = { system: "half", light: "sun", dark: "moon" } as const;

export function turnTheme(): void {
  theme.value = NEXT_THEME[theme.value];
}

const toggle = (which: "conversations" | "inspector" | "keys") => {
  if (sheet.value === which) sheet.value = "none";
  else open(which);
};

export function Header() {
  return (
    <header class="bar">
      {view.value === "chat" && (
        <span class="only-narrow">
          <IconButton icon="side" label="Conversations" onClick={() => toggle("conversations")} />
        </span>
      )}
      <a class="brand" href="#chat" aria-label="Paceline, chat">
        <Mark />
        <span class="brand-name">Paceline</span>
      </a>
      <nav class="tabs" aria-label="Views">
        {VIEWS.map((name) => (
          <a key={name} href={`#${name}`} aria-current={view.value === name ? "page" : undefined}>
            {NAMES[name]}
          </a>
        ))}
      </nav>
      <Status />
      <span class="bar-end">
        <IconButton icon={THEME_ICONS[theme.value]} label={`Theme: ${theme.value}`} onClick={turnTheme} />
        <span class="only-wide">
          <IconButton icon="keys" label="Keyboard shortcuts (?)" onClick={() => toggle("keys")} />
        </span>
        {view.value === "chat" && (
          <span class="only-medium">
            <IconButton icon="panel" label="Drafts and settings" onClick={() => toggle("inspector")} />
          </span>
        )}
      </span>
    </header>
  );
}

const WORDS = { connecting: "connecting", open: "ready", closed: "not connected" };

function Status() {
  const last = gauges.value.at(-1);
  const rate = last?.tokens_per_second ?? 0;
  const busy = online.value === "open" && rate > 0;
  return (
    <div class="status">
      <span class={`dot ${online.value}${busy ? " busy" : ""}`} />
      <span class="status-model">{engine.value?.model.name ?? "…"}</span>
      <span class="status-rest">
        {engine.value?.device.name}
        {" · "}
        {busy ? `${short(rate)} tok/s` : WORDS[online.value]}
      </span>
    </div>
  );
}
