// A request as text that does the same elsewhere.

/** What the page adds to see how it runs, and another program has no use for. */
const OF_THE_PAGE = ["stream", "stream_options", "return_token_origins"];

/** Fields that OpenAI's library knows by name; others go into `extra_body`. */
const OF_OPENAI = new Set([
  "model",
  "messages",
  "temperature",
  "top_p",
  "max_tokens",
  "seed",
  "stop",
  "presence_penalty",
  "frequency_penalty",
  "logit_bias",
  "tools",
  "tool_choice",
  "response_format",
]);

function plain(body: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(body).filter(([name]) => !OF_THE_PAGE.includes(name)));
}

/** For a shell. */
export function asCurl(body: Record<string, unknown>, base: string, withKey: boolean): string {
  const quoted = JSON.stringify(plain(body), null, 2).replaceAll("'", "'\\''");
  const key = withKey ? ` \\\n  -H "authorization: Bearer $PACELINE_API_KEY"` : "";
  return `curl ${base}v1/chat/completions \\\n  -H 'content-type: application/json'${key} \\\n  -d '${quoted}'\n`;
}

/** For Python with OpenAI's library. */
export function asPython(body: Record<string, unknown>, base: string, withKey: boolean): string {
  const entries = Object.entries(plain(body));
  const known = entries.filter(([name]) => OF_OPENAI.has(name));
  const extra = Object.fromEntries(entries.filter(([name]) => !OF_OPENAI.has(name)));
  const lines = known.map(([name, value]) => `    ${name}=${literal(value, 1)},`);
  if (Object.keys(extra).length > 0) lines.push(`    extra_body=${literal(extra, 1)},`);
  const key = withKey ? 'os.environ["PACELINE_API_KEY"]' : '"none"';
  return [
    ...(withKey ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${literal(`${base}v1`, 0)}, api_key=${key})`,
    "reply = client.chat.completions.create(",
    ...lines,
    ")",
    "print(reply.choices[0].message.content)",
    "",
  ].join("\n");
}

/** A value as Python writes it. JSON's text literals are Python's too. */
function literal(value: unknown, depth: number): string {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = "    ".repeat(depth + 1);
  const close = "    ".repeat(depth);
  const list = Array.isArray(value);
  const parts = list
    ? value.map((item) => literal(item, depth + 1))
    : Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${literal(item, depth + 1)}`);
  const [open, shut] = list ? "[]" : "{}";
  return parts.length === 0 ? `${open}${shut}` : `${open}\n${inner}${parts.join(`,\n${inner}`)},\n${close}${shut}`;
}
