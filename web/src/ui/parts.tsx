// Small parts that views share.

import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { tell } from "../state";
import { Icon, type IconName } from "./icons";

interface ButtonProps {
  icon: IconName;
  label: string;
  onClick: () => void;
  disabled?: boolean;
  pressed?: boolean;
  /** Shown beside the icon; otherwise the label is for screen readers and the tooltip. */
  text?: string;
  class?: string;
}

/** A quiet button with an icon. */
export function IconButton(props: ButtonProps) {
  return (
    <button
      type="button"
      class={`quiet ${props.text === undefined ? "" : "with-text"} ${props.class ?? ""}`}
      aria-label={props.text === undefined ? props.label : undefined}
      aria-pressed={props.pressed}
      title={props.label}
      disabled={props.disabled}
      onClick={props.onClick}
    >
      <Icon name={props.icon} />
      {props.text}
    </button>
  );
}

interface SwitchProps {
  label: ComponentChildren;
  help?: ComponentChildren;
  on: boolean;
  onChange: (on: boolean) => void;
}

export function Switch({ label, help, on, onChange }: SwitchProps) {
  const id = useId();
  return (
    <div class="switch-row">
      <button
        type="button"
        role="switch"
        class="switch"
        aria-checked={on}
        aria-labelledby={id}
        aria-describedby={help === undefined ? undefined : `${id}-help`}
        onClick={() => onChange(!on)}
      />
      {/* biome-ignore lint/a11y/noStaticElementInteractions: the switch beside it is what the keyboard reaches */}
      {/* biome-ignore lint/a11y/useKeyWithClickEvents: the same */}
      <div class="switch-text" onClick={() => onChange(!on)}>
        <span id={id}>{label}</span>
        {help !== undefined && (
          <span class="help" id={`${id}-help`}>
            {help}
          </span>
        )}
      </div>
    </div>
  );
}

export interface MenuItem {
  icon: IconName;
  label: string;
  act: () => void;
}

/** A button that opens a list of actions. */
export function Menu({ icon, label, items }: { icon: IconName; label: string; items: MenuItem[] }) {
  const [open, setOpen] = useState(false);
  const root = useRef<HTMLDivElement>(null);
  const entries = () => [...(root.current?.querySelectorAll<HTMLButtonElement>("[role=menuitem]") ?? [])];
  useEffect(() => {
    if (!open) return;
    entries()[0]?.focus();
    const away = (event: Event) => {
      if (!root.current?.contains(event.target as Node)) setOpen(false);
    };
    document.addEventListener("pointerdown", away);
    return () => document.removeEventListener("pointerdown", away);
  }, [open]);
  const close = () => {
    setOpen(false);
    root.current?.querySelector<HTMLButtonElement>("button")?.focus();
  };
  const onKey = (event: KeyboardEvent) => {
    const all = entries();
    const at = all.indexOf(document.activeElement as HTMLButtonElement);
    const moves: Record<string, number> = {
      ArrowDown: at + 1,
      ArrowUp: at - 1,
      Home: 0,
      End: all.length - 1,
    };
    if (event.key === "Escape" && open) close();
    else if (open && event.key in moves) all.at((moves[event.key] as number) % all.length)?.focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: keys of the buttons inside
    <div class="menu" ref={root} onKeyDown={onKey}>
      <button
        type="button"
        class="quiet"
        aria-label={label}
        title={label}
        aria-haspopup="menu"
        aria-expanded={open}
        onClick={() => setOpen(!open)}
      >
        <Icon name={icon} />
      </button>
      {open && (
        <div class="menu-list" role="menu" aria-label={label}>
          {items.map((item) => (
            <button
              type="button"
              role="menuitem"
              tabIndex={-1}
              key={item.label}
              onClick={() => {
                close();
                item.act();
              }}
            >
              <Icon name={item.icon} />
              {item.label}
            </button>
          ))}
        </div>
      )}
    </div>
  );
}

/** A bar of parts that add up. */
export function StackedBar({ parts, label }: { parts: { name: string; share: number }[]; label: string }) {
  return (
    <div class="stacked" role="img" aria-label={label}>
      {parts
        .filter(({ share }) => share > 0)
        .map(({ name, share }) => (
          <span key={name} class={`part part-${name}`} style={{ flexGrow: share }} />
        ))}
    </div>
  );
}

/** A figure with its name. */
export function Figure({ value, unit, name, title }: { value: string; unit?: string; name: string; title?: string }) {
  return (
    <div class="figure" title={title}>
      <dt>{name}</dt>
      <dd>
        {value}
        {unit !== undefined && <small> {unit}</small>}
      </dd>
    </div>
  );
}

export function KeyCap({ children }: { children: ComponentChildren }) {
  return <kbd>{children}</kbd>;
}

/** Puts text on the clipboard, also where the page is not from a safe origin. */
export async function copyText(text: string, what: string): Promise<void> {
  try {
    if (navigator.clipboard === undefined) copyBySelection(text);
    else await navigator.clipboard.writeText(text);
    tell(`${what} copied.`);
  } catch {
    tell("The browser did not allow to copy.");
  }
}

function copyBySelection(text: string): void {
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  if (!copied) throw new Error("refused");
}

/** Hands a file to the person. */
export function download(name: string, content: Blob): void {
  const address = URL.createObjectURL(content);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
