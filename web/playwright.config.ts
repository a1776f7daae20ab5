// The page in a browser against the real program; see tests/browser. The browser is Chromium, or the Firefox that
// `$FIREFOX` names.

import { defineConfig } from "@playwright/test";
import { chromium } from "./tests/browser/chromium";

const firefox = process.env["FIREFOX"];

function browser() {
  if (firefox !== undefined) {
    // Firefox as it is distributed, over WebDriver BiDi. It asks a person about the clipboard unless told not to.
    const firefoxUserPrefs = { "dom.events.testing.asyncClipboard": true };
    const launchOptions = { executablePath: firefox, firefoxUserPrefs };
    return { browserName: "firefox" as const, channel: "moz-firefox", launchOptions };
  }
  const args = ["--no-sandbox", "--disable-gpu", "--no-zygote", "--font-render-hinting=none"];
  const permissions = ["clipboard-read", "clipboard-write"];
  return { browserName: "chromium" as const, permissions, launchOptions: { ...chromium(), args } };
}

export default defineConfig({
  testDir: "tests/browser",
  outputDir: "node_modules/.cache/browser",
  // The program and the browser share what cores there are; a server is one test's alone.
  workers: 1,
  fullyParallel: false,
  timeout: 60_000,
  expect: { timeout: 20_000 },
  reporter: [["list"]],
  use: { ...browser(), viewport: { width: 1440, height: 900 }, colorScheme: "light" },
});
