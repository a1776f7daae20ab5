// The page in Chromium against the real program; see tests/browser.

import { defineConfig } from "@playwright/test";
import { chromium } from "./tests/browser/chromium";

const { executablePath, env } = chromium();

export default defineConfig({
  testDir: "tests/browser",
  outputDir: "node_modules/.cache/browser",
  // The program and the browser share what cores there are; a server is one test's alone.
  workers: 1,
  fullyParallel: false,
  timeout: 60_000,
  expect: { timeout: 20_000 },
  reporter: [["list"]],
  use: {
    browserName: "chromium",
    viewport: { width: 1440, height: 900 },
    colorScheme: "light",
    permissions: ["clipboard-read", "clipboard-write"],
    launchOptions: {
      executablePath,
      env,
      args: ["--no-sandbox", "--disable-gpu", "--no-zygote", "--font-render-hinting=none"],
    },
  },
});
