// Conversations in the browser's database. Without one (private windows, policies), they last as long as the page.

import type { Conversation } from "./tree";

const NAME = "paceline";
const STORE = "conversations";

/** How many are kept; the ones that were used least recently go first. */
export const MOST_CONVERSATIONS = 200;

function done<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

let opening: Promise<IDBDatabase> | null = null;

function open(): Promise<IDBDatabase> {
  opening ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  return opening;
}

async function store(mode: IDBTransactionMode): Promise<IDBObjectStore> {
  return (await open()).transaction(STORE, mode).objectStore(STORE);
}

/** All that is kept, the newest first. */
export async function loadAll(): Promise<Conversation[]> {
  const all = (await done((await store("readonly")).getAll())) as Conversation[];
  return all.sort((left, right) => right.updated - left.updated);
}

export async function save(conversation: Conversation): Promise<void> {
  await done((await store("readwrite")).put(conversation));
}

export async function erase(id: string): Promise<void> {
  await done((await store("readwrite")).delete(id));
}

/** What is too much of a list that has the newest first. */
export function surplus(all: readonly Conversation[]): Conversation[] {
  return all.slice(MOST_CONVERSATIONS);
}
