// What a conversation asks of the server beside its messages: options, tools, a form of the answer.

import type { Option } from "./options";
import { parseOption } from "./options";

export interface Settings {
  system: string;
  /** Values as typed, of options that are not left to the server. */
  options: Record<string, string>;
  /** The drafters to use, as the server names them; empty for its own choice. */
  speculation: string;
  /** A JSON list of tools; empty for none. */
  tools: string;
  toolChoice: string;
  /** A JSON schema that answers follow; empty for none. */
  schema: string;
}

export const NO_SETTINGS: Settings = {
  system: "",
  options: {},
  speculation: "",
  tools: "",
  toolChoice: "auto",
  schema: "",
};

/** Settings less those of `lent` that are still as they were lent. */
export function withoutLent(settings: Settings, lent: Partial<Settings>): Settings {
  const kept = Object.entries(lent).map(([name, value]) => {
    const key = name as keyof Settings;
    return [key, settings[key] === value ? NO_SETTINGS[key] : settings[key]];
  });
  return { ...settings, ...Object.fromEntries(kept) };
}

/** Fields of a request, and what is wrong with those that cannot be sent. */
export interface Fields {
  body: Record<string, unknown>;
  errors: Record<string, string>;
}

/** Settings as fields of a request. */
export function fieldsOf(settings: Settings, options: readonly Option[]): Fields {
  const fields: Fields = { body: {}, errors: {} };
  for (const option of options) {
    const typed = settings.options[option.name]?.trim() ?? "";
    if (typed === "") continue;
    const parsed = parseOption(option, typed);
    if ("error" in parsed) fields.errors[option.name] = parsed.error;
    else fields.body[option.name] = parsed.value;
  }
  if (settings.speculation !== "") fields.body["speculation"] = settings.speculation;
  addJson(fields, "tools", settings.tools, (tools) => {
    if (!Array.isArray(tools)) throw new Error("a list of tools in [ ]");
    fields.body["tools"] = tools;
    fields.body["tool_choice"] = settings.toolChoice;
  });
  addJson(fields, "schema", settings.schema, (schema) => {
    if (typeof schema !== "object" || schema === null) throw new Error("a schema in { }");
    fields.body["response_format"] = { type: "json_schema", json_schema: { name: "answer", schema } };
  });
  return fields;
}

function addJson(fields: Fields, name: string, text: string, add: (value: unknown) => void): void {
  if (text.trim() === "") return;
  try {
    add(JSON.parse(text));
  } catch (error) {
    fields.errors[name] = `This must be ${error instanceof SyntaxError ? `JSON: ${error.message}` : messageOf(error)}`;
  }
}

const messageOf = (error: unknown) => (error instanceof Error ? error.message : String(error));
