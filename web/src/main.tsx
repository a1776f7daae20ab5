// The page.

import { render } from "preact";
import { useEffect } from "preact/hooks";
import { restore } from "./actions";
import { startLooking } from "./live";
import { listenToKeys } from "./shortcuts";
import { type Sheet, sheet, view } from "./state";
import { Dialogs } from "./views/dialogs";
import { EngineView } from "./views/engine-view";
import { Header } from "./views/header";
import { Inspector } from "./views/inspector";
import { Pipeline } from "./views/pipeline";
import { Sidebar } from "./views/sidebar";
import { Chat } from "./views/thread";

function App() {
  const chat = view.value === "chat";
  const over = sheet.value;
  useEffect(() => cover(over), [over]);
  return (
    <>
      <button type="button" class="skip" onClick={skip}>
        To the content
      </button>
      <Header />
      <div class="body" data-view={view.value} data-sheet={over}>
        {chat && <Sidebar />}
        {view.value === "chat" && <Chat />}
        {view.value === "pipeline" && <Pipeline />}
        {view.value === "engine" && <EngineView />}
        {chat && <Inspector />}
        {(over === "conversations" || over === "inspector") && (
          // biome-ignore lint/a11y/noStaticElementInteractions: Escape does the same
          // biome-ignore lint/a11y/useKeyWithClickEvents: the same
          <div class="scrim" onClick={() => (sheet.value = "none")} />
        )}
      </div>
      <Dialogs />
    </>
  );
}

/** What is over the page has the focus, and gives it back; what is under it cannot be reached meanwhile. */
function cover(over: Sheet): (() => void) | undefined {
  if (over !== "conversations" && over !== "inspector") return;
  const before = document.activeElement as HTMLElement | null;
  const main = document.getElementById("main");
  main?.toggleAttribute("inert", true);
  document.querySelector<HTMLElement>(`#${over} button`)?.focus();
  return () => {
    main?.toggleAttribute("inert", false);
    before?.focus();
  };
}

/** The fragment is the view's, so the browser's own way to skip is not free. */
function skip(): void {
  const main = document.getElementById("main");
  main?.setAttribute("tabindex", "-1");
  main?.focus();
}

function start(): void {
  listenToKeys();
  startLooking();
  void restore();
  render(<App />, document.getElementById("app") as HTMLElement);
}

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
else start();
