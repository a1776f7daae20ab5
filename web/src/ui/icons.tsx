// Icons, as lines on a grid of 16.

const PATHS = {
  plus: "M8 3v10M3 8h10",
  send: "M8 13V3M3.5 7.5 8 3l4.5 4.5",
  stop: "M4.5 4.5h7v7h-7z",
  retry: "M13 8a5 5 0 1 1-1.6-3.7M13 2.5v3h-3",
  edit: "M3 13h2.2L13 5.2 10.8 3 3 10.8zM9.5 4.3l2.2 2.2",
  copy: "M6 6h7v7H6zM3.5 10H3V3h7v.5",
  left: "M10 3.5 5.5 8l4.5 4.5",
  right: "M6 3.5 10.5 8 6 12.5",
  down: "M3.5 6 8 10.5 12.5 6",
  trash: "M3 4.5h10M6.5 4.5V3h3v1.5M4.5 4.5l.6 8.5h5.8l.6-8.5M6.8 7v3.8M9.2 7v3.8",
  download: "M8 3v7M4.8 7 8 10.2 11.2 7M3 13h10",
  sun: "M8 5.2a2.8 2.8 0 1 0 0 5.6 2.8 2.8 0 0 0 0-5.6M8 1.5v1.3M8 13.2v1.3M1.5 8h1.3M13.2 8h1.3M3.4 3.4l.9.9M11.7 11.7l.9.9M12.6 3.4l-.9.9M4.3 11.7l-.9.9",
  moon: "M13 9.6A5.6 5.6 0 0 1 6.4 3a5.6 5.6 0 1 0 6.6 6.6z",
  half: "M8 2.5a5.5 5.5 0 1 0 0 11zM8 2.5a5.5 5.5 0 0 1 0 11",
  keys: "M2 4.5h12v7.5H2zM4.5 7h.01M7 7h.01M9.5 7h.01M12 7h-.01M5 9.5h6",
  side: "M2.5 3h11v10h-11zM6.5 3v10",
  panel: "M2.5 3h11v10h-11zM9.5 3v10",
  close: "M4 4l8 8M12 4l-8 8",
  check: "M3 8.5 6.5 12 13 4.5",
  more: "M3.5 8h.01M8 8h.01M12.5 8h.01",
  code: "M5.5 4.5 2 8l3.5 3.5M10.5 4.5 14 8l-3.5 3.5",
  equal: "M3 6h10M3 10h10",
  warn: "M8 2.5 14.5 13.5h-13zM8 6.5v3.2M8 11.7h.01",
  zoomIn: "M7 3a4 4 0 1 0 0 8 4 4 0 0 0 0-8M10 10l3.5 3.5M7 5.3v3.4M5.3 7h3.4",
  zoomOut: "M7 3a4 4 0 1 0 0 8 4 4 0 0 0 0-8M10 10l3.5 3.5M5.3 7h3.4",
  fit: "M2.5 6V3h3M13.5 6V3h-3M2.5 10v3h3M13.5 10v3h-3",
  play: "M5 3.5v9L12.5 8z",
  pause: "M5 3.5v9M11 3.5v9",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}

/** The mark: rows of tokens, nose to tail. */
export function Mark() {
  return (
    <svg class="mark" viewBox="0 0 32 32" aria-hidden="true">
      <rect class="mark-ground" width="32" height="32" rx="8" />
      <rect x="6" y="8" width="12" height="4" rx="2" />
      <rect x="20" y="8" width="6" height="4" rx="2" />
      <rect x="6" y="14" width="6" height="4" rx="2" />
      <rect x="14" y="14" width="12" height="4" rx="2" />
      <rect x="6" y="20" width="15" height="4" rx="2" />
      <rect x="23" y="20" width="3" height="4" rx="1.5" />
    </svg>
  );
}
