// For everyone: by keyboard alone, on a phone, with axe, in both themes, without a network.

import { ask, expect, test, violations } from "./fixtures";

test("everything is reached by keyboard alone", async ({ app }) => {
  const focused = () => app.evaluate(() => document.activeElement?.id || document.activeElement?.className || "");
  await expect.poll(focused).toBe("composer");
  await app.keyboard.type("Tell me about a fox.");
  await app.keyboard.press("Enter");
  await expect(app.locator(".answer")).toHaveAttribute("data-state", "done");
  await app.keyboard.press("Escape");
  await app.keyboard.press("r");
  await expect(app.getByText("2 / 2")).toBeVisible();
  await expect(app.locator(".answer")).toHaveAttribute("data-state", "done");
  await app.keyboard.press("[");
  await expect(app.getByText("1 / 2")).toBeVisible();
  await app.keyboard.press("p");
  await expect(app.locator(".verdict.good")).toBeVisible();
  await app.keyboard.press("t");
  await app.keyboard.press("ArrowRight");
  await app.keyboard.press("ArrowRight");
  await expect(app.getByRole("tooltip")).toContainText("token 2");
  await app.keyboard.press("Escape");
  await app.keyboard.press("e");
  await expect(app.getByLabel("Edit the message")).toBeFocused();
  await app.keyboard.press("Escape");
  await app.keyboard.press("2");
  await expect(app.getByRole("heading", { name: "Pipeline" })).toBeVisible();
  await app.keyboard.press("3");
  await expect(app.getByRole("heading", { name: "Engine" })).toBeVisible();
  await app.keyboard.press("?");
  await expect(app.getByRole("dialog")).toBeVisible();
  await app.keyboard.press("Escape");
  await expect(app.getByRole("dialog")).toHaveCount(0);
  await app.keyboard.press("/");
  await expect.poll(focused).toBe("composer");
  await app.keyboard.press("Escape");
  await app.keyboard.press("s");
  await expect(app.getByRole("tab", { name: "Settings" })).toBeFocused();
  await app.keyboard.press("n");
  await expect(app.locator(".welcome")).toBeVisible();
});

test("the focus is always visible and never trapped", async ({ app }) => {
  await ask(app, "Hello.");
  await app.keyboard.press("Escape");
  await app.locator(".skip").focus();
  const seen = new Set<string>();
  for (let tab = 0; tab < 60; tab += 1) {
    await app.keyboard.press("Tab");
    const [name, outlined] = await app.evaluate(() => {
      const element = document.activeElement as HTMLElement;
      const style = getComputedStyle(element);
      const box = element.closest(".composer-box");
      const ring = style.outlineStyle !== "none" || (box !== null && getComputedStyle(box).boxShadow !== "none");
      return [`${element.tagName} ${element.ariaLabel ?? element.textContent ?? ""}`.slice(0, 60), ring] as const;
    });
    if (name.startsWith("BODY")) break;
    expect(outlined, name).toBe(true);
    seen.add(name);
  }
  expect(seen.size).toBeGreaterThan(20);
});

test("single keys can be switched off", async ({ app }) => {
  await app.keyboard.press("Escape");
  await app.keyboard.press("?");
  await app.getByRole("switch", { name: "Single keys act" }).click();
  await app.keyboard.press("Escape");
  await app.keyboard.press("3");
  await expect(app.getByRole("heading", { name: "Engine" })).toHaveCount(0);
});

for (const scheme of ["light", "dark"] as const) {
  test(`axe finds nothing, ${scheme}`, async ({ app }) => {
    test.setTimeout(120_000);
    await app.emulateMedia({ colorScheme: scheme });
    expect(await violations(app), "empty").toEqual([]);
    await ask(app, "Tell me about a fox.");
    await app.getByRole("button", { name: "Prove equal" }).click();
    await expect(app.locator(".verdict.good")).toBeVisible();
    expect(await violations(app), "answer").toEqual([]);
    await app.getByRole("tab", { name: "Settings" }).click();
    await app.getByText("More options").click();
    expect(await violations(app), "settings").toEqual([]);
    await app.getByRole("link", { name: "Pipeline" }).click();
    await app.getByText("The newest steps as a table").click();
    expect(await violations(app), "pipeline").toEqual([]);
    await app.getByRole("link", { name: "Engine" }).click();
    await expect(app.locator(".features tbody tr").first()).toBeVisible();
    expect(await violations(app), "engine").toEqual([]);
    await app.getByRole("button", { name: /Keyboard shortcuts/ }).click();
    expect(await violations(app), "dialog").toEqual([]);
  });
}

test("the theme is the system's until it is switched, and stays switched", async ({ app }) => {
  const background = () => app.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const light = await background();
  await app.emulateMedia({ colorScheme: "dark" });
  await expect.poll(background).not.toBe(light);
  await app.getByRole("button", { name: "Theme: system" }).click();
  await expect.poll(background).toBe(light);
  await app.reload();
  await expect.poll(background).toBe(light);
});

test("a phone 390 pixels wide shows everything without scrolling sideways", async ({ app }) => {
  await app.setViewportSize({ width: 390, height: 844 });
  const sideways = () =>
    app.evaluate(() => Math.max(document.documentElement.scrollWidth, document.body.scrollWidth) - innerWidth);
  expect(await sideways(), "empty").toBeLessThanOrEqual(0);
  await ask(app, "Tell me about a fox.");
  await app.getByRole("button", { name: "Prove equal" }).click();
  await expect(app.locator(".verdict.good")).toBeVisible();
  expect(await sideways(), "answer").toBeLessThanOrEqual(0);
  const overflowing = await app.locator(".thread").evaluate((thread) => thread.scrollWidth - thread.clientWidth);
  expect(overflowing).toBeLessThanOrEqual(0);
  await app.getByRole("button", { name: "Conversations" }).click();
  await expect(app.getByRole("button", { name: "New conversation" })).toBeInViewport();
  await app.keyboard.press("Escape");
  await app.getByRole("button", { name: "Drafts and settings" }).click();
  await expect(app.getByRole("tab", { name: "Drafts" })).toBeInViewport();
  expect(await violations(app), "sheet").toEqual([]);
  await expect(app.locator("main")).toHaveAttribute("inert", "");
  await app.getByRole("button", { name: "Close" }).click();
  await expect(app.getByRole("button", { name: "Drafts and settings" })).toBeFocused();
  await expect(app.getByRole("tab", { name: "Drafts" })).not.toBeInViewport();
  for (const view of ["Pipeline", "Engine"]) {
    await app.getByRole("link", { name: view }).click();
    await expect(app.getByRole("heading", { name: view, level: 1 })).toBeVisible();
    expect(await sideways(), view).toBeLessThanOrEqual(0);
  }
});

test("the page paints without any network but its own server, and says when that is gone", async ({
  app,
  complaints,
}) => {
  const paint = () => app.evaluate(() => performance.getEntriesByName("first-contentful-paint").length);
  await expect.poll(paint).toBe(1);
  const loaded = await app.evaluate(() => performance.getEntriesByType("resource").map(({ name }) => name));
  const origin = await app.evaluate(() => location.origin);
  expect(loaded.filter((name) => !name.startsWith(origin) && !name.startsWith("data:"))).toEqual([]);
  await app.context().setOffline(true);
  await app.getByLabel("Message", { exact: true }).fill("Hello?");
  await app.keyboard.press("Enter");
  await expect(app.getByRole("alert")).toContainText("cannot be reached");
  await app.context().setOffline(false);
  // The browser reports every connection that fails by itself.
  complaints.found.splice(0);
});
