// A server of its own for each file of tests, and a page that must not complain.

import { type ChildProcess, spawn } from "node:child_process";
import { join } from "node:path";
import { createInterface } from "node:readline";
import AxeBuilder from "@axe-core/playwright";
import { test as base, expect, type Page } from "@playwright/test";
import { type Exchange, wire } from "./wire";

const PROGRAM = process.env["PACELINE"] ?? join(process.cwd(), "../target/debug/paceline");

export interface Server {
  address: string;
  /** What the page has asked for and got, in its order. */
  exchanges: Exchange[];
  stop(): Promise<void>;
}

/** Starts the program with its built-in model; it is ready when it says where it listens. */
export async function serve(...flags: string[]): Promise<Server> {
  const child = spawn(PROGRAM, ["serve", "--port", "0", ...flags], { stdio: ["ignore", "pipe", "pipe"] });
  const lines: string[] = [];
  const address = await new Promise<string>((resolve, reject) => {
    const read = (line: string) => {
      lines.push(line);
      const found = /listening on (http:\S+)/.exec(line);
      if (found?.[1] !== undefined) resolve(found[1]);
    };
    for (const stream of [child.stdout, child.stderr]) createInterface({ input: stream }).on("line", read);
    child.once("error", reject);
    child.once("exit", (code) => reject(new Error(`${PROGRAM} ended with ${code}\n${lines.join("\n")}`)));
  });
  const between = await wire(address);
  const stop = () => {
    between.stop();
    return ended(child);
  };
  return { address: `${between.address}/`, exchanges: between.exchanges, stop };
}

function ended(child: ChildProcess): Promise<void> {
  return new Promise((resolve) => {
    if (child.exitCode !== null) return resolve();
    child.once("exit", () => resolve());
    child.kill("SIGKILL");
  });
}

/** What the browser had against the page. */
export class Complaints {
  readonly found: string[] = [];

  constructor(page: Page, address: string) {
    page.on("console", (message) => {
      if (["error", "warning"].includes(message.type())) this.found.push(`${message.type()}: ${message.text()}`);
    });
    page.on("pageerror", (error) => this.found.push(error.stack ?? error.message));
    page.on("request", (request) => {
      const own = request.url().startsWith(address) || /^(data|blob):/.test(request.url());
      if (!own) this.found.push(`a request to ${request.url()}`);
    });
  }
}

interface Workers {
  server: Server;
}

interface Tests {
  /** The page at `/`, which has asked the server what it is. */
  app: Page;
  complaints: Complaints;
}

export const test = base.extend<Tests, Workers>({
  server: [
    // biome-ignore lint/correctness/noEmptyPattern: Playwright reads the names of what is wanted from here
    async ({}, use) => {
      // Drafts are always made here: whether they pay depends on what else this machine does.
      const server = await serve("--no-depth-control");
      await use(server);
      await server.stop();
    },
    { scope: "worker" },
  ],
  complaints: async ({ page, server }, use) => {
    const complaints = new Complaints(page, server.address);
    await use(complaints);
    expect(complaints.found, "the console, other hosts").toEqual([]);
  },
  app: async ({ page, server, complaints: _ }, use) => {
    await page.goto(server.address);
    await expect(page.getByText("storyteller", { exact: true })).toBeVisible();
    await expect(page.locator(".dot.open")).toBeVisible();
    await use(page);
  },
});

/** Says something and waits for the end of the answer. */
export async function ask(page: Page, text: string): Promise<void> {
  await page.getByLabel("Message", { exact: true }).fill(text);
  await page.keyboard.press("Enter");
  await settled(page);
}

/** Waits until nothing is written any more. */
export async function settled(page: Page): Promise<void> {
  await expect(page.locator(".answer").last()).toHaveAttribute("data-state", /done|stopped|failed/);
  await expect(page.getByRole("button", { name: "Stop" })).toHaveCount(0);
}

/** Sets options as a person would, in the settings. */
export async function setOptions(page: Page, values: Record<string, string>): Promise<void> {
  await page.getByRole("tab", { name: "Settings" }).click();
  for (const [name, value] of Object.entries(values)) {
    const field = page.getByLabel(name, { exact: true });
    if (!(await field.isVisible())) await page.getByText("More options").click();
    if ((await field.evaluate((element) => element.tagName)) === "SELECT") await field.selectOption(value);
    else await field.fill(value);
  }
}

/** What the page has asked for in chats, and got. */
export const chats = (server: Server) => server.exchanges.filter(({ path }) => path === "/v1/chat/completions");

/** The objects in a stream of the server's. */
// biome-ignore lint/suspicious/noExplicitAny: they are what a test says they are
export function chunks({ reply }: Exchange): any[] {
  const lines = reply.split("\n").filter((line) => line.startsWith("data: {"));
  return lines.map((line) => JSON.parse(line.slice(6)));
}

/** The last answer, without its footer. */
export const answerText = (page: Page) => page.locator(".answer").last().locator(".markdown").first();

export const shownText = async (page: Page) => (await answerText(page).textContent()) ?? "";

/** What axe finds against WCAG A and AA. */
export async function violations(page: Page): Promise<string[]> {
  const looked = process.env["FIREFOX"] === undefined ? page : await still(page);
  const tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
  const { violations } = await new AxeBuilder({ page: looked }).withTags(tags).analyze();
  if (looked !== page) await looked.close();
  return violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.html} ${node.failureSummary}`));
}

/**
 * A copy of what a page shows, without its script. Firefox 159 dies of a segmentation fault when a page changes after axe
 * has asked for the names of its buttons (the rule `button-name` is enough); this one changes no more.
 */
async function still(page: Page): Promise<Page> {
  const [html, dark] = await page.evaluate(() => {
    const copy = document.documentElement.cloneNode(true) as HTMLElement;
    for (const script of copy.querySelectorAll("script")) script.remove();
    return [copy.outerHTML, matchMedia("(prefers-color-scheme: dark)").matches] as const;
  });
  const copy = await page.context().newPage();
  await copy.setViewportSize(page.viewportSize() ?? { width: 1440, height: 900 });
  await copy.emulateMedia({ colorScheme: dark ? "dark" : "light" });
  const body = `<!doctype html>${html}`;
  await copy.route(page.url(), (route) => route.fulfill({ contentType: "text/html; charset=utf-8", body }));
  await copy.goto(page.url());
  return copy;
}

export { expect };
