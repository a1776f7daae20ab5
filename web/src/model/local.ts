// Small values that the browser keeps: the theme, the key, what is folded.

const PREFIX = "paceline.";

/** A value that was kept, if storage is allowed and has it. */
export function recall(name: string): string | null {
  try {
    return localStorage.getItem(PREFIX + name);
  } catch {
    return null;
  }
}

/** Keeps a value, or forgets it if it is empty. */
export function remember(name: string, value: string): void {
  try {
    if (value === "") localStorage.removeItem(PREFIX + name);
    else localStorage.setItem(PREFIX + name, value);
  } catch {
    // Without storage, it lasts as long as the page.
  }
}
