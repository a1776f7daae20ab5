// What is over the page: the shortcuts, the question for a key, notices.

import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { apiKey, keyWanted, setKey } from "../api/http";
import { letters, SHORTCUTS, setLetters } from "../shortcuts";
import { notice, sheet } from "../state";
import { IconButton, KeyCap, Switch } from "../ui/parts";

interface DialogProps {
  label: string;
  onClose: () => void;
  children: ComponentChildren;
}

function Dialog({ label, onClose, children }: DialogProps) {
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const dialog = box.current;
    const before = document.activeElement as HTMLElement | null;
    dialog?.showModal();
    return () => {
      dialog?.close();
      before?.focus();
    };
  }, []);
  return (
    <dialog ref={box} aria-label={label} onClose={onClose} onCancel={onClose}>
      {children}
    </dialog>
  );
}

export function Dialogs() {
  return (
    <>
      {sheet.value === "keys" && <Keys />}
      {keyWanted.value && <KeyQuestion />}
      <Notice />
    </>
  );
}

function Keys() {
  const close = () => {
    if (sheet.value === "keys") sheet.value = "none";
  };
  return (
    <Dialog label="Keyboard shortcuts" onClose={close}>
      <div class="dialog-head">
        <h2>Keyboard</h2>
        <IconButton icon="close" label="Close" onClick={close} />
      </div>
      <dl class="keys">
        <div>
          <dt>
            <KeyCap>Enter</KeyCap>
          </dt>
          <dd>Send; with Shift, a new line</dd>
        </div>
        <div>
          <dt>
            <KeyCap>Esc</KeyCap>
          </dt>
          <dd>Stop, close, or leave a field</dd>
        </div>
        {SHORTCUTS.map(({ key, words }) => (
          <div key={key}>
            <dt>
              <KeyCap>{key.toUpperCase()}</KeyCap>
            </dt>
            <dd>{words}</dd>
          </div>
        ))}
      </dl>
      <Switch label="Single keys act" help="Outside of fields." on={letters.value} onChange={setLetters} />
    </Dialog>
  );
}

function KeyQuestion() {
  const onSubmit = (event: Event) => {
    event.preventDefault();
    const data = new FormData(event.currentTarget as HTMLFormElement);
    setKey(String(data.get("key") ?? "").trim());
  };
  return (
    <Dialog label="API key" onClose={() => (keyWanted.value = false)}>
      <form class="key-form" onSubmit={onSubmit}>
        <h2>This server wants a key</h2>
        <p class="help">
          {apiKey.value === "" ? "It stays in this browser." : "The key that was sent is not one of the server's."}
        </p>
        <input name="key" type="password" aria-label="API key" autocomplete="off" required />
        <button type="submit" class="primary">
          Use this key
        </button>
      </form>
    </Dialog>
  );
}

function Notice() {
  const now = notice.value;
  return (
    <div class="notices" role="status">
      {now !== null && (
        <div class="notice">
          <span>{now.text}</span>
          {now.undo !== undefined && (
            <button
              type="button"
              class="plain"
              onClick={() => {
                now.undo?.();
                notice.value = null;
              }}
            >
              Undo
            </button>
          )}
        </div>
      )}
    </div>
  );
}
