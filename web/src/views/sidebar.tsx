// The conversations that the browser keeps.

import { useSignal } from "@preact/signals";
import { begin, exported, remove, rename } from "../actions";
import type { Conversation } from "../model/tree";
import { conversations, currentId, engine, sheet, view } from "../state";
import { Icon } from "../ui/icons";
import { download, Menu } from "../ui/parts";
import { focusComposer } from "./composer";

/** Begins a conversation, from wherever the person is. */
export function beginHere(): void {
  begin();
  view.value = "chat";
  location.hash = "chat";
  sheet.value = "none";
  requestAnimationFrame(focusComposer);
}

export function Sidebar() {
  const all = conversations.value;
  return (
    <nav class="sidebar" id="conversations" aria-label="Conversations">
      <button type="button" class="new" onClick={beginHere}>
        <Icon name="plus" /> New conversation <kbd>N</kbd>
      </button>
      <ul>
        {all.map((conversation) => (
          <Entry key={conversation.id} conversation={conversation} />
        ))}
      </ul>
      {all.length === 0 && <p class="empty">Conversations stay in this browser.</p>}
      <div class="sidebar-foot">
        <a href="licences.txt">Licences</a>
        <span>{engine.value === null ? "" : `Paceline ${engine.value.version}`}</span>
      </div>
    </nav>
  );
}

function Entry({ conversation }: { conversation: Conversation }) {
  const naming = useSignal(false);
  const { id, title } = conversation;
  const save = (event: Event) => {
    rename(id, (event.currentTarget as HTMLInputElement).value);
    naming.value = false;
  };
  const onKey = (event: KeyboardEvent) => {
    if (event.key === "Enter") save(event);
    if (event.key !== "Escape") return;
    event.stopPropagation();
    naming.value = false;
  };
  if (naming.value) {
    return (
      <li class="entry">
        <input
          aria-label="Title"
          defaultValue={title}
          onBlur={save}
          onKeyDown={onKey}
          ref={(input) => input?.focus()}
          maxLength={80}
        />
      </li>
    );
  }
  const file = (form: "json" | "markdown") => {
    const name = title.replace(/[^\p{L}\p{N}]+/gu, "-").toLowerCase() || "conversation";
    const end = form === "json" ? "json" : "md";
    download(`${name}.${end}`, new Blob([exported(conversation, form)], { type: "text/plain" }));
  };
  const open = () => {
    currentId.value = id;
    location.hash = "chat";
    sheet.value = "none";
  };
  return (
    <li class="entry">
      <button
        type="button"
        class="entry-title"
        aria-current={currentId.value === id ? "true" : undefined}
        onClick={open}
      >
        {title}
      </button>
      <Menu
        icon="more"
        label={`Actions for “${title}”`}
        items={[
          { icon: "edit", label: "Rename", act: () => (naming.value = true) },
          { icon: "download", label: "Export as Markdown", act: () => file("markdown") },
          { icon: "download", label: "Export as JSON", act: () => file("json") },
          { icon: "trash", label: "Delete", act: () => remove(id) },
        ]}
      />
    </li>
  );
}
