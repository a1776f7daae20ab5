// The colours of origins, as people see them who lack one kind of cone, and the contrast of text.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

type Colour = [number, number, number];

const sheet = readFileSync("src/style/base.css", "utf8");
const [light = "", dark = ""] = sheet.split(':root[data-theme="dark"]');

function named(theme: string, name: string): Colour {
  const found = new RegExp(`--${name}: #([0-9a-f]{3,6});`).exec(theme)?.[1];
  assert.ok(found, name);
  const full = found.length === 3 ? [...found].map((digit) => digit + digit).join("") : found;
  return [0, 2, 4].map((at) => Number.parseInt(full.slice(at, at + 2), 16) / 255) as Colour;
}

const linear = (colour: Colour) =>
  colour.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)) as Colour;

const times = (matrix: number[][], [a, b, c]: Colour) =>
  matrix.map(([x = 0, y = 0, z = 0]) => x * a + y * b + z * c) as Colour;

/** Full protanopia and deuteranopia on linear light, after Machado, Oliveira and Fernandes (2009). */
const SIGHTS = {
  "all cones": [
    [1, 0, 0],
    [0, 1, 0],
    [0, 0, 1],
  ],
  "no red cones": [
    [0.152286, 1.052583, -0.204868],
    [0.114503, 0.786281, 0.099216],
    [-0.003882, -0.048116, 1.051998],
  ],
  "no green cones": [
    [0.367322, 0.860646, -0.227968],
    [0.280085, 0.672501, 0.047413],
    [-0.01182, 0.04294, 0.968881],
  ],
};

const XYZ = [
  [0.4124, 0.3576, 0.1805],
  [0.2126, 0.7152, 0.0722],
  [0.0193, 0.1192, 0.9505],
];

function lab(light: Colour): Colour {
  const [x, y, z] = times(XYZ, light);
  const [fx, fy, fz] = [x / 0.9505, y, z / 1.089].map((part) =>
    part > 0.008856 ? Math.cbrt(part) : 7.787 * part + 16 / 116,
  ) as Colour;
  return [116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)];
}

/** How different two colours look, in the CIE's units: 2 can just be told apart side by side. */
function difference(one: Colour, other: Colour, sight: number[][]): number {
  const [a, b] = [one, other].map((colour) => lab(times(sight, linear(colour)))) as [Colour, Colour];
  return Math.hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]);
}

test("origins look different to everyone, in both themes", () => {
  const names = ["o-sampled", "o-ngram", "o-neural", "o-grammar"];
  for (const [theme, text] of Object.entries({ light, dark })) {
    for (const [people, sight] of Object.entries(SIGHTS)) {
      names.forEach((one, index) => {
        for (const other of names.slice(index + 1)) {
          const far = difference(named(text, one), named(text, other), sight);
          assert.ok(far > 20, `${one} and ${other} are ${far.toFixed(1)} apart, ${theme}, ${people}`);
        }
      });
    }
  }
});

test("text has the contrast that WCAG AA asks for on every ground that it is on", () => {
  const luminance = (colour: Colour) => times(XYZ, linear(colour))[1];
  for (const [theme, text] of Object.entries({ light, dark })) {
    for (const ink of ["ink", "ink-2", "ink-3", "accent", "red"]) {
      for (const ground of ["bg", "bg-2"]) {
        const [low, high] = [luminance(named(text, ink)), luminance(named(text, ground))].sort((a, b) => a - b);
        const contrast = ((high ?? 0) + 0.05) / ((low ?? 0) + 0.05);
        assert.ok(contrast >= 4.5, `${ink} on ${ground} has ${contrast.toFixed(2)}, ${theme}`);
      }
    }
  }
});
