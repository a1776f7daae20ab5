// An answer as Markdown, with every character in the colour of its token. Elements are made from the parsed text, one by one:
// no markup of the model's reaches the page, whatever it writes.

import { marked, type Token, type Tokens } from "marked";
import { Component, type ComponentChildren, type JSX } from "preact";
import { highlight } from "../model/highlight";
import type { Piece } from "../model/origins";
import { Painter, type Run } from "../model/painter";
import { copyText, IconButton } from "../ui/parts";

interface MarkdownProps {
  text: string;
  pieces: readonly Piece[];
  /** Where the text begins in the raw text. */
  shift: number;
}

/** `code`: the language that the whole text is in, if it is no Markdown. */
export function Markdown({ text, pieces, shift, code }: MarkdownProps & { code?: string | undefined }) {
  let start = 0;
  const blocks = parsed(text, code).map((token, index) => {
    const at = start;
    start += token.raw.length;
    const known = pieces.length > 0 && (pieces.at(-1)?.start ?? 0) >= at + shift;
    const rest = { source: text, pieces, shift, start: at };
    return (
      <Block key={index} token={token} {...rest} version={known ? Math.min(lengthOf(pieces), start + shift) : 0} />
    );
  });
  return <div class="markdown">{blocks}</div>;
}

function parsed(text: string, code: string | undefined): Token[] {
  if (code === undefined || text === "") return marked.lexer(text, { gfm: true, breaks: true });
  return [{ type: "code", raw: text, lang: code, text }];
}

/** How far the raw text is known. */
function lengthOf(pieces: readonly Piece[]): number {
  const last = pieces.at(-1);
  return last === undefined ? 0 : last.start + last.text.length;
}

interface BlockProps extends Omit<MarkdownProps, "text"> {
  token: Token;
  source: string;
  start: number;
  /** Changes when more of the block's tokens are known. */
  version: number;
}

/** A block of the text; one that is complete is not made again while the rest is written. */
class Block extends Component<BlockProps> {
  override shouldComponentUpdate(next: BlockProps): boolean {
    const { token, start, version, shift } = this.props;
    return token.raw !== next.token.raw || start !== next.start || version !== next.version || shift !== next.shift;
  }

  override render({ token, source, pieces, shift, start }: BlockProps) {
    const painter = new Painter(source, pieces, shift);
    painter.seek(start);
    return blockOf(token, painter);
  }
}

/** Text in runs of its tokens. */
export function Runs({ runs }: { runs: Run[] }): JSX.Element {
  return <>{runs.map(({ text, piece }) => spanOf(text, piece))}</>;
}

function spanOf(text: string, piece: Piece | null, kind = ""): ComponentChildren {
  if (piece === null) return kind === "" ? text : <span class={kind}>{text}</span>;
  const refused = piece.rejected.length > 0 ? " refused" : "";
  return (
    <span class={`t o-${piece.origin}${refused} ${kind}`} data-t={piece.index}>
      {text}
    </span>
  );
}

function inline(tokens: Token[] | undefined, painter: Painter): ComponentChildren[] {
  return (tokens ?? []).map((token) => inlineOf(token, painter));
}

const leaf = (text: string, painter: Painter) => <Runs runs={painter.take(text)} />;

function inlineOf(token: Token, painter: Painter): ComponentChildren {
  switch (token.type) {
    case "strong":
      return <strong>{inline(token.tokens, painter)}</strong>;
    case "em":
      return <em>{inline(token.tokens, painter)}</em>;
    case "del":
      return <del>{inline(token.tokens, painter)}</del>;
    case "codespan":
      return <code>{leaf(withoutEntities((token as Tokens.Codespan).text), painter)}</code>;
    case "br":
      return <br />;
    case "link":
      return linkOf(token as Tokens.Link, painter);
    case "image":
      // Nothing is loaded from elsewhere, least of all because a model says so.
      return <span class="image-text">{leaf((token as Tokens.Image).text || "image", painter)}</span>;
    case "text":
      if ("tokens" in token && token.tokens !== undefined) return <>{inline(token.tokens, painter)}</>;
      return leaf(withoutEntities((token as Tokens.Text).text), painter);
    case "escape":
      return leaf((token as Tokens.Escape).text, painter);
    default:
      return leaf(token.raw, painter);
  }
}

/** Entities that people write in Markdown; anything else stays as it is. */
function withoutEntities(text: string): string {
  const entities: Record<string, string> = {
    amp: "&",
    lt: "<",
    gt: ">",
    quot: '"',
    "#39": "'",
    nbsp: "\u00a0",
  };
  return text.replace(/&(#39|amp|lt|gt|quot|nbsp);/g, (_, name: string) => entities[name] ?? "");
}

function linkOf(token: Tokens.Link, painter: Painter): ComponentChildren {
  const text = inline(token.tokens, painter);
  if (!/^(https?:|mailto:)/i.test(token.href)) return <>{text}</>;
  return (
    <a href={token.href} title={token.href} target="_blank" rel="noreferrer noopener nofollow">
      {text}
    </a>
  );
}

function blockOf(token: Token, painter: Painter): ComponentChildren {
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "hr":
      return <hr />;
    case "heading": {
      // The page has its own first levels.
      const Level = `h${Math.min(6, (token as Tokens.Heading).depth + 2)}` as "h3";
      return <Level>{inline(token.tokens, painter)}</Level>;
    }
    case "paragraph":
      return <p>{inline(token.tokens, painter)}</p>;
    case "text":
      return <>{"tokens" in token && token.tokens ? inline(token.tokens, painter) : inlineOf(token, painter)}</>;
    case "blockquote":
      return <blockquote>{blocks(token.tokens, painter)}</blockquote>;
    case "list":
      return listOf(token as Tokens.List, painter);
    case "code":
      return <CodeBlock token={token as Tokens.Code} painter={painter} />;
    case "table":
      return tableOf(token as Tokens.Table, painter);
    default:
      return <p>{leaf(token.raw, painter)}</p>;
  }
}

const blocks = (tokens: Token[] | undefined, painter: Painter) =>
  (tokens ?? []).map((token) => blockOf(token, painter));

function listOf(token: Tokens.List, painter: Painter): ComponentChildren {
  const items = token.items.map((item, index) => (
    <li key={index} class={item.task ? "task" : undefined}>
      {item.task && <input type="checkbox" checked={item.checked === true} disabled aria-label="done" />}
      {blocks(item.tokens, painter)}
    </li>
  ));
  return token.ordered ? <ol start={Number(token.start) || 1}>{items}</ol> : <ul>{items}</ul>;
}

function tableOf(token: Tokens.Table, painter: Painter): ComponentChildren {
  const cells = (row: Tokens.TableCell[], Cell: "th" | "td") =>
    row.map((cell, index) => (
      <Cell key={index} class={cell.align ? `align-${cell.align}` : undefined}>
        {inline(cell.tokens, painter)}
      </Cell>
    ));
  const head = cells(token.header, "th");
  return (
    <div class="table-scroll">
      <table>
        <thead>
          <tr>{head}</tr>
        </thead>
        <tbody>
          {token.rows.map((row, index) => (
            <tr key={index}>{cells(row, "td")}</tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function CodeBlock({ token, painter }: { token: Tokens.Code; painter: Painter }) {
  const language = (token.lang ?? "").split(/\s/)[0] ?? "";
  const parts = highlight(token.text, language);
  return (
    <div class="code">
      <div class="code-head">
        <span>{language || "text"}</span>
        <IconButton icon="copy" label="Copy this code" onClick={() => void copyText(token.text, "Code")} />
      </div>
      <pre tabIndex={0}>
        <code>{parts.map(({ text, kind }) => painter.take(text).map((run) => spanOf(run.text, run.piece, kind)))}</code>
      </pre>
    </div>
  );
}
