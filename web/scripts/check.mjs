// Everything that needs no browser: types, lints, unit tests, and that `dist` is what these sources give.

import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gunzipSync } from "node:zlib";
import { LIMIT, make, root, weight } from "./build.mjs";
import { unitTests } from "./unit.mjs";

function fail(message) {
  console.error(`the page: ${message}`);
  process.exit(1);
}

function run(name, ...args) {
  const { status } = spawnSync(join(root, "node_modules/.bin", name), args, { cwd: root, stdio: "inherit" });
  if (status !== 0) fail(`${name} has found something`);
}

/** Builds elsewhere and compares byte for byte. */
async function compare() {
  const fresh = mkdtempSync(join(tmpdir(), "paceline-page-"));
  try {
    const sizes = await make(fresh);
    const names = (folder) => readdirSync(folder).sort();
    const dist = join(root, "dist");
    if (names(fresh).join() !== names(dist).join()) fail(`web/dist has ${names(dist)}, a build ${names(fresh)}`);
    // Zip libraries differ in how they pack; what comes out of the packed files is what counts.
    const content = (path) => (path.endsWith(".gz") ? gunzipSync(readFileSync(path)) : readFileSync(path));
    for (const name of names(fresh)) {
      const same = content(join(fresh, name)).equals(content(join(dist, name)));
      if (!same) fail(`web/dist/${name} is not what the sources give; run \`npm run build\` in web/`);
    }
    const sent = weight(sizes);
    if (sent > LIMIT) fail(`it weighs ${sent} bytes compressed, at most ${LIMIT} are allowed`);
    console.log(`the page: dist is current, ${sent} bytes compressed of at most ${LIMIT}`);
  } finally {
    rmSync(fresh, { recursive: true });
  }
}

run("tsc", "--project", root);
run("biome", "ci", "--error-on-warnings", root);
if (!(await unitTests())) fail("a unit test has failed");
await compare();
