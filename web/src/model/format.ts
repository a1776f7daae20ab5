// Figures as people read them.

const NUMBER = new Intl.NumberFormat("en");

export const whole = (value: number) => NUMBER.format(Math.round(value));

/** Three digits at most, without zeroes that say nothing. */
export function short(value: number): string {
  const size = Math.abs(value);
  if (size >= 100) return whole(value);
  return String(Number(value.toFixed(size >= 10 ? 1 : 2)));
}

export function percent(share: number): string {
  const value = share * 100;
  return `${value > 0 && value < 10 ? value.toFixed(1) : value.toFixed(0)} %`;
}

/** Milliseconds, in the unit that fits. */
export function duration(ms: number): string {
  const size = Math.abs(ms);
  if (size < 1) return `${short(ms * 1000)} µs`;
  if (size < 1000) return `${short(ms)} ms`;
  if (size < 60_000) return `${short(ms / 1000)} s`;
  const minutes = Math.floor(ms / 60_000);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/**
 * Tokens per second from the question to the end; null where there is nothing to divide. When the first token came is not
 * taken off: a browser learns of it too late for engines that are through in less than a tenth of a second.
 */
export function rateOf(tokens: number, totalMs: number | null): number | null {
  return totalMs === null || totalMs <= 0 || tokens === 0 ? null : (tokens / totalMs) * 1000;
}

export const nanoseconds = (ns: number) => duration(ns / 1e6);

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(count: number): string {
  const unit = count < 1 ? 0 : Math.min(UNITS.length - 1, Math.floor(Math.log2(count) / 10));
  return `${short(count / 1024 ** unit)} ${UNITS[unit]}`;
}

export function count(value: number, one: string, many = `${one}s`): string {
  return `${whole(value)} ${value === 1 ? one : many}`;
}

/** Whitespace that could not be seen, made visible. */
export function visible(text: string): string {
  if (text === "") return "∅";
  return text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "·");
}
