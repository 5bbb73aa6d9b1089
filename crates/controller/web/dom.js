// SPDX-License-Identifier: Apache-2.0
// Elements from words. Text goes in as text: nothing that comes from the API is ever read as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(9).filter((c) => c !== undefined && c !== null && c !== false).map((c) => c instanceof Node ? c : String(c)));
  return element;
}

/** An element of HTML. */
export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

/** An element of SVG. */
export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** Puts these in place of what is there; who has the focus keeps it, if an element of the same id comes. */
export function put(parent, ...children) {
  const focused = parent.contains(document.activeElement) ? document.activeElement.id : "";
  parent.replaceChildren(...children.flat(9).filter((c) => c));
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

/** A number for people. */
export const number = (n) => Number(n ?? 0).toLocaleString("en").replaceAll(",", "\u202f");

/** A number in few digits, with a unit. */
export function short(n, unit = "") {
  const steps = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  const [size, prefix] = steps.find(([size]) => n >= size) ?? [1, ""];
  const value = n / size;
  const digits = value >= 100 || (prefix === "" && Number.isInteger(n)) ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)}${unit || prefix ? "\u202f" : ""}${prefix}${unit}`;
}

/** A share as percent. */
export function percent(share) {
  const p = share * 100;
  return p === 0 ? "0 %" : p < 0.1 ? "< 0.1 %" : `${p.toFixed(p < 10 ? 1 : 0)} %`;
}

/** Tables by the words that people use. */
const TABLES = { vms: "VMs", routes: "Routes", tenants: "VPCs", ncs: "NCs", memory_lines: "Memory", addresses: "Addresses", drop_counters: "Drop counters", sessions: "Sessions", states: "States", nexthops: "Next hops" };
export const tableName = (name) => TABLES[name] ?? name;

/** Who did something: a Role of the name of its access need not say both. */
export const who = (user) => (user ?? "").replace(/^(\S+) \(\1\)$/, "$1");

/** A time of day, UTC, with the date if it is not today. */
export function time(ms) {
  const text = new Date(ms).toISOString();
  const today = new Date().toISOString().slice(0, 10);
  return text.startsWith(today) ? text.slice(11, 19) : `${text.slice(0, 10)} ${text.slice(11, 19)}`;
}

/** How long ago. */
export function ago(ms) {
  if (!ms) return "never";
  const s = Math.max(0, Math.round((Date.now() - ms) / 1000));
  return s < 5 ? "now" : s < 60 ? `${s} s ago` : s < 3600 ? `${Math.floor(s / 60)} min ago` : s < 172800 ? `${Math.floor(s / 3600)} h ago` : `${Math.floor(s / 86400)} days ago`;
}

const TONES = { current: "ok", verified: "ok", committed: "ok", done: "ok", connected: "ok", forward: "ok", answer: "ok", made: "ok", admitted: "ok", joining: "warn", out: "bad", behind: "warn", installed: "warn", drift: "warn", revoked: "warn", wait: "warn", damaged: "bad", refused: "bad", drop: "bad", away: "bad" };

/** A state as a badge. */
export const badge = (state) => h("span", { class: `badge ${TONES[state] ?? ""}` }, state);

/** A table; each column is `[heading, cell, class]`. On a narrow screen each row is a card. */
export function table(columns, rows, label) {
  const head = columns.map(([name, , kind]) => h("th", { scope: "col", class: kind?.includes("num") ? "num" : undefined }, name));
  const body = rows.map((row) => h("tr", {}, columns.map(([name, cell, kind]) => h("td", { class: kind, "data-name": name }, cell(row)))));
  return h("div", { class: "scroll" }, h("table", { class: "rows", "aria-label": label }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

/** Headline of a view. */
export const head = (title, sub, ...right) => h("div", { class: "head" }, h("div", {}, h("h1", {}, title), sub && h("p", { class: "sub" }, sub)), right);

/** A few numbers side by side. */
export const tiles = (list) => h("dl", { class: "tiles" }, list.filter((t) => t).map(([name, value, more]) => h("div", { class: "tile" }, h("dt", {}, name), h("dd", {}, value, more && h("small", {}, " ", more)))));

/** A card with a heading. */
export const card = (title, right, ...body) => h("section", { class: "card" }, h("header", {}, h("h2", {}, title), right && h("span", { class: "muted small" }, right)), body);

/** Nothing to see, in words. */
export const empty = (...words) => h("div", { class: "empty" }, words);

/** Why something is not there. */
export const trouble = (error) => h("div", { class: "note bad", role: "alert" }, error.message);

/** Runs once things have been quiet for some time. */
export function later(ms, work) {
  let timer = 0;
  return (...words) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...words), ms);
  };
}

/** Three bars: intended, installed, verified. */
export function three(n) {
  const installed = n.installed >= n.intent && n.intent > 0, verified = n.verified >= n.intent && n.intent > 0;
  const words = `intent ${n.intent}, installed ${n.installed}, verified ${n.verified}`;
  const bar = (on, part) => h("i", { class: on ? "on" : part ? "part" : undefined });
  return h("span", { class: "three", role: "img", "aria-label": words, title: words }, h("i", { class: "first" }), bar(installed, n.installed > 0), bar(verified, n.verified > 0));
}
