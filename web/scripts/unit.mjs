// Compiles the unit tests and runs them with Node's own runner.

import { spawnSync } from "node:child_process";
import { readdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { build } from "esbuild";
import { root } from "./build.mjs";

/** Whether all passed. */
export async function unitTests() {
  const folder = join(root, "tests/unit");
  const out = join(root, "node_modules/.cache/unit");
  rmSync(out, { recursive: true, force: true });
  await build({
    absWorkingDir: root,
    entryPoints: readdirSync(folder).map((name) => join(folder, name)),
    outdir: out,
    outExtension: { ".js": ".mjs" },
    bundle: true,
    format: "esm",
    platform: "node",
    target: "node20",
    sourcemap: "inline",
  });
  const files = readdirSync(out).map((name) => join(out, name));
  return spawnSync(process.execPath, ["--test", "--enable-source-maps", ...files], { stdio: "inherit" }).status === 0;
}

if (process.argv[1] === new URL(import.meta.url).pathname) process.exit((await unitTests()) ? 0 : 1);
