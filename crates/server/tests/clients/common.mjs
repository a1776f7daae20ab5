// What the scripts for Node share: where the server is, an end for what hangs, and a runner that names what failed.

export const [BASE, MODEL, KEY] = process.argv.slice(2);

// A client that waits for ever fails.
const limit = setTimeout(() => {
  console.log("FAILED  nothing happened for three minutes");
  process.exit(1);
}, 180_000);

/** Runs all checks; the script fails if one does. */
export async function run(checks) {
  let failed = 0;
  for (const [name, check] of Object.entries(checks)) {
    try {
      await check();
      console.log(`ok      ${name}`);
    } catch (error) {
      failed += 1;
      console.log(`FAILED  ${name}`);
      console.log(error);
    }
  }
  clearTimeout(limit);
  process.exitCode = failed ? 1 : 0;
}
