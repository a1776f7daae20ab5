// Arrows between the versions of a message.

import { turnTo } from "../actions";
import { type Message, place } from "../model/tree";
import { current } from "../state";
import { IconButton } from "../ui/parts";

export function Siblings({ message, what }: { message: Message; what: string }) {
  if (current.value === null) return null;
  const { index, count } = place(current.value, message.id);
  if (count < 2) return null;
  return (
    <span class="siblings" role="group" aria-label={`Version of this ${what}`}>
      <IconButton icon="left" label={`Earlier ${what}`} disabled={index === 0} onClick={() => turnTo(message.id, -1)} />
      <span>
        {index + 1} / {count}
      </span>
      <IconButton
        icon="right"
        label={`Later ${what}`}
        disabled={index === count - 1}
        onClick={() => turnTo(message.id, 1)}
      />
    </span>
  );
}
