// Where people write.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { obstacle, send, stop } from "../actions";
import { busy, currentId, engine, inspectorTab, open, settings, twins, view } from "../state";
import { Icon } from "../ui/icons";
import { IconButton, KeyCap } from "../ui/parts";
import { byTouch } from "../ui/pointer";

/** Puts the cursor where people write. */
export function focusComposer(): void {
  document.getElementById("composer")?.focus();
}

export function Composer() {
  const text = useSignal("");
  const area = useRef<HTMLTextAreaElement>(null);
  const wrong = obstacle();
  useEffect(() => {
    // On a phone, the keyboard would cover what was opened.
    if (!byTouch()) area.current?.focus();
  }, [currentId.value, view.value]);
  useEffect(() => {
    const box = area.current;
    if (box === null) return;
    box.style.height = "auto";
    box.style.height = `${Math.min(box.scrollHeight, 240)}px`;
  }, [text.value]);
  const submit = () => {
    const words = text.value.trim();
    if (words === "" || busy.value || wrong !== null) return;
    text.value = "";
    send(words);
  };
  const onKey = (event: KeyboardEvent) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  };
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
    >
      {wrong !== null && (
        <p class="composer-error" role="alert">
          <Icon name="warn" /> {wrong}
        </p>
      )}
      <div class="composer-box">
        <textarea
          id="composer"
          ref={area}
          rows={1}
          aria-label="Message"
          placeholder={`Message ${engine.value?.model.name ?? "the model"}`}
          value={text.value}
          onInput={(event) => (text.value = event.currentTarget.value)}
          onKeyDown={onKey}
        />
        <div class="composer-row">
          <Chips />
          <span class="composer-hint">
            <KeyCap>Enter</KeyCap> sends
          </span>
          {busy.value ? (
            <button type="button" class="primary round" aria-label="Stop" title="Stop (Esc)" onClick={() => stop()}>
              <Icon name="stop" />
            </button>
          ) : (
            <button
              type="submit"
              class="primary round"
              aria-label="Send"
              title="Send (Enter)"
              disabled={text.value.trim() === "" || wrong !== null}
            >
              <Icon name="send" />
            </button>
          )}
        </div>
      </div>
    </form>
  );
}

/** What differs from the server's defaults, and the way to change it. */
function Chips() {
  const { system, tools, schema, options, speculation } = settings.value;
  const changed = Object.values(options).filter((value) => value.trim() !== "").length;
  const set = [
    system.trim() !== "" && "system prompt",
    tools.trim() !== "" && "tools",
    schema.trim() !== "" && "JSON schema",
    speculation !== "" && `drafts ${speculation}`,
    changed > 0 && `${changed} ${changed === 1 ? "option" : "options"}`,
    twins.value && "proof",
  ].filter((chip) => chip !== false);
  const change = () => {
    inspectorTab.value = "settings";
    open("inspector");
  };
  return (
    <span class="chips">
      <IconButton icon="panel" text="Settings" label="Settings of this conversation" onClick={change} />
      {set.map((chip) => (
        <button type="button" class="chip" key={chip} onClick={change}>
          {chip}
        </button>
      ))}
    </span>
  );
}
