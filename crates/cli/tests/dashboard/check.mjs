// SPDX-License-Identifier: Apache-2.0
// Looks at the dashboard as somebody would: signs in, goes through every view by keyboard and pointer, sees changes come by themselves, and
// that nothing runs over, fails, or goes elsewhere. Leaves a screenshot of every view, wide and narrow, light and dark.

import assert from "node:assert/strict";
import { join } from "node:path";

const { chromium } = await import(process.env.TUNNY_PLAYWRIGHT);
const { TUNNY_URL: url, TUNNY_OPERATOR: operator, TUNNY_TENANT: tenant, TUNNY_PICTURES: pictures } = process.env;
const begun = Date.now();
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
const problems = [];

async function open(options) {
  const context = await browser.newContext({ ignoreHTTPSErrors: true, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(30_000);
  page.on("console", (m) => { if (m.type() === "error" && !m.text().includes("status of 4")) problems.push(`console: ${m.text()}`); });
  page.on("pageerror", (e) => problems.push(`error: ${e.message}`));
  page.on("request", (r) => { if (!r.url().startsWith(url)) problems.push(`goes elsewhere: ${r.url()}`); });
  await page.goto(url);
  return page;
}

async function signIn(page, token) {
  await page.getByLabel("Token").fill(token);
  await page.keyboard.press("Enter");
  await page.getByRole("navigation").waitFor();
}

const settled = (page, words) => page.locator("main").getByText(words).first().waitFor();

// What is wrong with a token is said, and the token is nowhere in the address.
const page = await open({ viewport: { width: 1280, height: 860 } });
await page.getByLabel("Token").fill("nonsense");
await page.keyboard.press("Enter");
await page.getByRole("alert").getByText("not known here").waitFor();
await page.screenshot({ path: join(pictures, "sign-in-1280-light.png") });
await signIn(page, operator);
assert(!page.url().includes(operator.slice(0, 8)) && !(await page.content()).includes(operator));

// The map is live: all four nodes come to be current, and a change raises the numbers, without a reload.
await page.evaluate(() => { window.sameDocument = true; });
const tile = (name) => page.locator(".tile", { has: page.getByText(name, { exact: true }) }).locator("dd");
await page.waitForFunction(() => document.querySelectorAll(".node .badge.ok").length === 4);
await page.waitForFunction(() => document.querySelector(".tile dd").textContent.startsWith("4"));
const api = (path, body) => page.request.fetch(url + path, { method: body ? "POST" : "GET", headers: { Authorization: `Bearer ${operator}` }, data: body });
assert.equal(await tile("VMs").textContent(), "288");
const vm = "{apiVersion: tunny/v1, kind: Vm, metadata: {name: fresh}, spec: {vpc: payments-test, addresses: [10.0.1.77], mac: \"02:00:00:00:77:77\", nc: rack1}}";
assert((await api("/v1/apply", vm)).ok());
await page.waitForFunction(() => document.querySelector("main").textContent.includes("289"));
assert.equal((await api("/v1/apply", "kind: [")).status(), 422);
await page.waitForFunction(() => document.querySelector("main").textContent.includes("refused"));
await page.waitForFunction(() => document.querySelectorAll(".gauge").length >= 4, undefined, { timeout: 30_000 });
assert(await page.evaluate(() => window.sameDocument), "the page was loaded again");
// Two clusters with two nodes each: a link to each, with what runs over it.
const links = page.getByRole("list", { name: "Links" }).getByRole("listitem");
assert.equal(await links.count(), 6);
await page.waitForFunction(() => [...document.querySelectorAll(".flowline")].every((link) => /packets\/s · .*bit\/s/.test(link.textContent)), undefined, { timeout: 30_000 });
await links.getByRole("link", { name: "north-1" }).waitFor();

// By keyboard alone: skip link, views by number, search by slash, down into the list, in.
await page.keyboard.press("3");
await page.waitForURL(/#\/tenants/);
await page.keyboard.press("/");
await page.keyboard.type("fres");
await settled(page, "found in");
await page.getByRole("link", { name: "fresh" }).waitFor();
// An answer that comes late makes a new list, and who walks through the old one stays where they are.
const focused = () => page.evaluate(() => document.activeElement.textContent);
let release;
const late = new Promise((done) => { release = done; });
const whole = /\/v1\/search\?q=fresh&/;
await page.route(whole, async (route) => { await late; await route.continue(); });
const asked = page.waitForRequest(whole);
await page.keyboard.type("h");
await asked;
await page.keyboard.press("ArrowDown");
assert.equal(await focused(), "fresh");
await page.evaluate(() => document.activeElement.setAttribute("data-old", ""));
release();
await page.waitForFunction(() => !document.querySelector("[data-old]") && document.querySelector("[aria-busy]").getAttribute("aria-busy") === "false");
assert.equal(await focused(), "fresh");
await page.unroute(whole);
await page.keyboard.press("Enter");
await settled(page, "As configured");
await page.waitForFunction(() => document.querySelectorAll("main .badge.ok").length === 2);
await page.getByRole("link", { name: "Trace from here" }).click();
await page.getByLabel("To", { exact: true }).fill("10.0.1.3");
await page.keyboard.press("Enter");
await page.locator("#verdict").getByText("forward").waitFor();
await page.getByLabel("To", { exact: true }).fill("10.0.99.1");
await page.keyboard.press("Enter");
await page.locator("#verdict").getByText("route_blackhole").waitFor();
await page.locator("#verdict").getByText("None, if intended").waitFor();
await page.getByLabel("To", { exact: true }).fill("nobody");
await page.keyboard.press("Enter");
await page.getByRole("alert").getByText("it is no address").waitFor();
await page.goto(`${url}/#/tenants`);
for (const [word, expected] of [["1010", "search-prod"], ["10.4.0.7", "mail-prod-web07"], ["10.4.0", "mail-prod-web12"], ["192.0.2.3", "rack3"], ["freight-test-web1", "freight-test-web10"]]) {
  await page.getByRole("searchbox").fill(word);
  await page.locator("td.lead").getByText(expected, { exact: true }).waitFor();
}
await page.getByRole("searchbox").fill("no such thing");
await settled(page, "Nothing here has");
// Nodes can be filtered, and one be looked at; events have what was around a time.
await page.goto(`${url}/#/nodes`);
await page.getByLabel("Filter nodes").fill("south");
await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 2);
await page.getByRole("link", { name: "south-1" }).click();
await settled(page, "Verified");
page.once("dialog", (dialog) => dialog.accept());
await page.getByRole("button", { name: "Send everything anew" }).click();
await page.locator("#say").getByText("is sent everything anew").waitFor();
await page.goto(`${url}/#/events`);
await page.getByLabel("Outcome").selectOption("refused");
await page.waitForFunction(() => [...document.querySelectorAll("tbody tr")].every((row) => row.textContent.includes("refused")));
await page.locator("tbody a").first().click();
await page.waitForURL(/around=\d+/);
await page.waitForFunction(() => document.querySelectorAll("tbody tr").length > 5);

// Every view, wide and narrow, light and dark: nothing runs over, and pictures for those who look.
const views = [["map", "#/map", "Lately"], ["levels", "#/levels", "Now"], ["tenants", "#/tenants?q=web0", "found in"], ["tenant", "#/tenants/payments", "On nodes"], ["vpc", "#/tenants/vpc/payments-prod", "Routes"], ["trace", "#/trace?from=payments-prod-web01&to=10.0.0.3&protocol=tcp&port=443", "What the gateway changes"], ["drop", "#/trace?from=payments-prod-web01&to=10.0.99.3&protocol=tcp&port=443", "route_blackhole"], ["nodes", "#/nodes", "4 of 4"], ["node", "#/nodes/north-1", "Verified"], ["events", "#/events", "the latest first"]];
const sizes = [["1280", { viewport: { width: 1280, height: 860 } }], ["390", { viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, hasTouch: true, isMobile: true }]];
await Promise.all(sizes.flatMap(([size, options]) => ["light", "dark"].map(async (colorScheme) => {
  const other = await open({ ...options, colorScheme });
  await signIn(other, operator);
  for (const [name, place, words] of views) {
    await other.evaluate((place) => { location.hash = place; }, place);
    await settled(other, words);
    await other.waitForTimeout(100);
    const over = await other.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert(over <= 0, `${name} at ${size} runs over by ${over}`);
    const unnamed = await other.evaluate(() => [...document.querySelectorAll("input, select, button, a")].filter((e) => !(e.textContent.trim() || e.getAttribute("aria-label") || e.labels?.length)).map((e) => e.outerHTML));
    assert.deepEqual(unnamed, [], `${name}: without a name`);
    await other.screenshot({ path: join(pictures, `${name}-${size}-${colorScheme}.png`) });
  }
  await other.context().close();
})));

// A tenant sees what is its own, and no view of what is not.
const theirs = await open({ viewport: { width: 1280, height: 860 } });
await signIn(theirs, tenant);
assert.deepEqual(await theirs.getByRole("navigation").getByRole("link").allTextContents(), ["Tenants", "Trace"]);
for (const [word, count] of [["payments-prod-web03", 1], ["mail-prod-web03", 0], ["10.4.0.7", 0], ["rack3", 0]]) {
  await theirs.getByRole("searchbox").fill(word);
  await theirs.waitForFunction(([word, count]) => document.querySelector("main").textContent.includes(count ? "found in" : "Nothing here has") && document.querySelectorAll("td.lead").length === count && document.querySelector(".sub").textContent.startsWith(String(count)) && document.querySelector("#q").value === word, [word, count]);
}
await theirs.goto(`${url}/#/nodes`);
await settled(theirs, "Tenants");
assert.equal(await theirs.locator("main").getAttribute("data-view"), "tenants");
await theirs.goto(`${url}/#/tenants/mail`);
await theirs.getByRole("alert").getByText("no Tenant named").waitFor();
// A change of its own comes by itself.
await theirs.goto(`${url}/#/tenants/payments`);
await settled(theirs, "25");
assert((await api("/v1/apply", vm.replace("fresh", "fresher").replace("77\", nc", "78\", nc").replace(".77]", ".78]"))).ok());
await settled(theirs, "26");
await theirs.screenshot({ path: join(pictures, "own-1280-light.png") });
await theirs.getByRole("button", { name: "Sign out" }).click();
await theirs.getByLabel("Token").waitFor();
assert.equal(await theirs.evaluate(() => sessionStorage.length), 0);

await browser.close();
assert.deepEqual(problems, []);
console.log(`all is well after ${((Date.now() - begun) / 1000).toFixed(1)} s`);
