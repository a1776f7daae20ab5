// The keyboard, when it is not used to write.

import { signal } from "@preact/signals";
import { retry, stop, turnTo } from "./actions";
import { recall, remember } from "./model/local";
import { colours, inspectorTab, open, sheet, thread, twins } from "./state";
import { focusComposer } from "./views/composer";
import { turnTheme } from "./views/header";
import { beginHere } from "./views/sidebar";

/** Whether single letters act; who dictates or slips may switch them off. */
export const letters = signal(recall("letters") !== "off");
export function setLetters(on: boolean): void {
  letters.value = on;
  remember("letters", on ? "" : "off");
}

interface Shortcut {
  key: string;
  words: string;
  act: () => void;
}

const lastAnswer = () => thread.value.findLast((message) => message.answer !== undefined);
const click = (selector: string) => [...document.querySelectorAll<HTMLElement>(selector)].at(-1)?.click();

export const SHORTCUTS: Shortcut[] = [
  { key: "/", words: "Write a message", act: () => goTo("chat") },
  { key: "n", words: "New conversation", act: beginHere },
  { key: "1", words: "Chat", act: () => goTo("chat") },
  { key: "2", words: "Pipeline", act: () => goTo("pipeline") },
  { key: "3", words: "Engine", act: () => goTo("engine") },
  { key: "e", words: "Edit the last message", act: () => click(".edit-message") },
  { key: "r", words: "Another answer", act: () => withAnswer(retry) },
  { key: "p", words: "Prove the last answer equal", act: () => click(".prove") },
  { key: "[", words: "Earlier version of the answer", act: () => withAnswer((id) => turnTo(id, -1)) },
  { key: "]", words: "Later version of the answer", act: () => withAnswer((id) => turnTo(id, 1)) },
  { key: "c", words: "Colours of tokens on or off", act: () => (colours.value = !colours.value) },
  { key: "b", words: "Run without drafts beside every answer", act: () => (twins.value = !twins.value) },
  {
    key: "t",
    words: "Walk through the tokens",
    act: () => [...document.querySelectorAll<HTMLElement>(".ribbon")].at(-1)?.focus(),
  },
  { key: "s", words: "Settings", act: openSettings },
  { key: "d", words: "Light, dark or the system's theme", act: turnTheme },
  { key: "?", words: "These shortcuts", act: () => open("keys") },
];

function withAnswer(act: (id: string) => void): void {
  const id = lastAnswer()?.id;
  if (id !== undefined) act(id);
}

function goTo(view: string): void {
  location.hash = view;
  requestAnimationFrame(() => {
    if (view === "chat") focusComposer();
    else document.querySelector<HTMLElement>(`.tabs [href="#${view}"]`)?.focus();
  });
}

function openSettings(): void {
  location.hash = "chat";
  inspectorTab.value = "settings";
  open("inspector");
  requestAnimationFrame(() => document.getElementById("tab-settings")?.focus());
}

const writes = (target: EventTarget | null) =>
  target instanceof Element && target.closest("input, textarea, select, [contenteditable]") !== null;

function onEscape(): boolean {
  if (sheet.value !== "none") {
    sheet.value = "none";
    return true;
  }
  if (stop()) return true;
  if (writes(document.activeElement)) {
    (document.activeElement as HTMLElement).blur();
    return true;
  }
  return false;
}

export function listenToKeys(): void {
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") {
      if (onEscape()) event.preventDefault();
      return;
    }
    if (!letters.value || writes(event.target) || sheet.value !== "none") return;
    const found = SHORTCUTS.find(({ key }) => key === event.key);
    if (found === undefined) return;
    event.preventDefault();
    found.act();
  });
}
