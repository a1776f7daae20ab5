// Server-sent events from the pieces in which they arrive.

export interface ServerEvent {
  event: string;
  data: string;
}

/** More than this without the end of an event is not a stream of ours. */
const MOST = 16 * 1024 * 1024;

export class EventParser {
  private rest = "";

  /** The events that are complete with this piece of text. */
  feed(text: string): ServerEvent[] {
    // A carriage return at the end may be half of a line's end.
    const all = this.rest + text;
    const held = all.endsWith("\r") ? "\r" : "";
    const normal = all
      .slice(0, all.length - held.length)
      .replaceAll("\r\n", "\n")
      .replaceAll("\r", "\n");
    const blocks = normal.split("\n\n");
    this.rest = (blocks.pop() ?? "") + held;
    if (this.rest.length > MOST) throw new Error("an event of the server is too long");
    return blocks.map(parse).filter((event) => event !== null);
  }
}

function parse(block: string): ServerEvent | null {
  let event = "message";
  const data: string[] = [];
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    if (colon === 0) continue;
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") event = value;
    if (field === "data") data.push(value);
  }
  return data.length === 0 ? null : { event, data: data.join("\n") };
}

/** The events of a reply's body, until it ends. */
export async function* events(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerEvent> {
  const parser = new EventParser();
  const reader = body.pipeThrough(new TextDecoderStream() as TransformStream<Uint8Array, string>).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* parser.feed(value);
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}
