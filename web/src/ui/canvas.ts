// A canvas that is as wide as its parent and as sharp as the screen.

import { useEffect, useRef } from "preact/hooks";
import { shownTheme } from "../state";

const cache = new Map<string, string>();
let cached = "";

/** A colour of the style sheet. */
export function colour(name: string): string {
  if (cached !== shownTheme.peek()) cache.clear();
  cached = shownTheme.peek();
  let value = cache.get(name);
  if (value === undefined) {
    value = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    cache.set(name, value);
  }
  return value;
}

type Painting = (context: CanvasRenderingContext2D, width: number, height: number) => void;

/** Paints when its size or the theme changes, and when `draw` is called. */
export function useCanvas(height: number, paint: Painting) {
  const ref = useRef<HTMLCanvasElement>(null);
  const latest = useRef(paint);
  latest.current = paint;
  const draw = () => {
    const canvas = ref.current;
    if (canvas === null) return;
    const width = canvas.parentElement?.clientWidth ?? 0;
    const scale = devicePixelRatio || 1;
    const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
    if (canvas.width !== wide || canvas.height !== high) {
      canvas.width = wide;
      canvas.height = high;
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    const context = canvas.getContext("2d");
    if (context === null || width === 0) return;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    latest.current(context, width, height);
  };
  useEffect(() => {
    const observer = new ResizeObserver(draw);
    const parent = ref.current?.parentElement;
    if (parent) observer.observe(parent);
    const stop = shownTheme.subscribe(draw);
    return () => {
      observer.disconnect();
      stop();
    };
  }, [height]);
  return { ref, draw };
}
