// The options of a request that the server offers, read from its own description (`/openapi.json`), so that the form is
// never behind the server.

export interface Option {
  name: string;
  kind: "number" | "integer" | "flag" | "texts" | "text" | "json";
  low: number | null;
  /** Whether `low` itself is out of bounds. */
  above: boolean;
  high: number | null;
  help: string;
}

/** A property of a schema, as far as forms need it. */
interface Property {
  type?: string | string[];
  anyOf?: Property[];
  description?: string;
  minimum?: number;
  exclusiveMinimum?: number;
  maximum?: number;
}

/** What is asked first; the rest is folded. */
export const COMMON = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];

/** Fields that the page fills in itself, that say the same as another, or that are refused. */
const LEFT_OUT = new Set([
  "best_of",
  "max_completion_tokens",
  "n",
  "return_token_ids",
  "return_token_origins",
  "speculation",
  "stream",
  "stream_options",
  "use_beam_search",
]);

/** Larger bounds are those of number types, and nobody has to read them. */
const MOST = 2 ** 31;

/** The options in a description of the server, those that are asked first in front. */
export function optionsOf(description: unknown): Option[] {
  const schemas = (description as { components?: { schemas?: Record<string, { properties?: object }> } }).components;
  const properties = Object.entries(schemas?.schemas?.["Sampling"]?.properties ?? {}) as [string, Property][];
  const found = properties.filter(([name]) => !LEFT_OUT.has(name)).map(([name, property]) => option(name, property));
  const rank = (name: string) => (COMMON.includes(name) ? COMMON.indexOf(name) : COMMON.length);
  return found.sort((left, right) => rank(left.name) - rank(right.name));
}

function option(name: string, property: Property): Option {
  const low = property.exclusiveMinimum ?? property.minimum ?? null;
  const high = property.maximum ?? null;
  return {
    name,
    kind: kindOf(property),
    low: low !== null && low > -MOST ? low : null,
    above: property.exclusiveMinimum !== undefined,
    high: high !== null && high < MOST ? high : null,
    help: property.description ?? "",
  };
}

function kindOf(property: Property): Option["kind"] {
  const types = [property.type ?? []].flat();
  if (types.includes("number")) return "number";
  if (types.includes("integer")) return "integer";
  if (types.includes("boolean")) return "flag";
  if (types.includes("string")) return "text";
  const alternatives = property.anyOf ?? [];
  const texts = alternatives.some((one) => one.type === "string" || JSON.stringify(one).includes("StopString"));
  return texts ? "texts" : "json";
}

/** A typed value as the server takes it, or what is wrong with it. */
export function parseOption(option: Option, typed: string): { value: unknown } | { error: string } {
  switch (option.kind) {
    case "number":
    case "integer":
      return parseNumber(option, typed);
    case "flag":
      return { value: typed === "true" };
    case "text":
      return { value: typed };
    case "texts":
      return { value: typed.split("\n").filter((line) => line !== "") };
    case "json":
      try {
        return { value: JSON.parse(typed) as unknown };
      } catch {
        return { error: "This must be JSON." };
      }
  }
}

function parseNumber(option: Option, typed: string): { value: number } | { error: string } {
  const value = Number(typed);
  const whole = option.kind === "integer";
  if (!Number.isFinite(value) || (whole && !Number.isSafeInteger(value))) {
    return { error: whole ? "This must be a whole number." : "This must be a number." };
  }
  const tooLow = option.low !== null && (option.above ? value <= option.low : value < option.low);
  const tooHigh = option.high !== null && value > option.high;
  return tooLow || tooHigh ? { error: `This must be ${boundsOf(option)}.` } : { value };
}

/** The bounds of a number in words; empty where there are none. */
export function boundsOf({ low, above, high }: Option): string {
  const from = low === null ? "" : above ? `above ${low}` : `at least ${low}`;
  const to = high === null ? "" : `at most ${high}`;
  return [from, to].filter((part) => part !== "").join(" and ");
}
