// SPDX-License-Identifier: Apache-2.0
// The frame: who looks, where they are, and the streams that keep what they see true.

import { esc, follow, get, Refused, sign, signedIn } from "./api.js";
import { h, later, put } from "./dom.js";
import * as map from "./map.js";
import * as levels from "./levels.js";
import * as tenants from "./tenants.js";
import * as trace from "./trace.js";
import * as nodes from "./nodes.js";
import * as events from "./events.js";

const VIEWS = { map, levels, tenants, trace, nodes, events };
const LOOKERS = ["operator", "readOnly"];

/** What is known of the region. Views read it; the streams write it. */
const state = { me: undefined, revision: 0, objects: {}, nodes: new Map(), events: [], samples: [], connected: false, changes: 0 };
const main = document.getElementById("main");
const top = document.getElementById("top");
const say = document.getElementById("say");
let view, streams = new AbortController();

const looks = () => LOOKERS.includes(state.me?.access);
const names = () => Object.keys(VIEWS).filter((name) => looks() || VIEWS[name].forTenants);

/** Where somebody is: `#/view/more?query`. */
function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  return { name: names().includes(name) ? name : names()[0], rest: rest.map(decodeURIComponent), query: new URLSearchParams(query ?? "") };
}

function frame() {
  const here = place().name;
  const link = (name) => h("a", { href: `#/${name}`, "aria-current": name === here && "page" }, VIEWS[name].title);
  const who = state.me.tenant ? `tenant ${state.me.tenant}` : state.me.role;
  put(top, h("div", { class: "inner" },
    h("a", { class: "brand", href: "#/" }, h("img", { src: "/ui/icon.svg", alt: "" }), "Tunny", h("span", { class: "region" }, state.me.region)),
    h("nav", { "aria-label": "Views" }, names().map(link)),
    h("div", { class: "who" },
      h("span", { class: `pulse ${state.connected ? "on" : "off"}`, id: "pulse", title: state.connected ? "what is shown is kept up to date" : "no connection: what is shown may be old" }, state.connected ? "live" : "offline"),
      h("span", { title: `Role ${state.me.role}, access ${state.me.access}` }, who),
      h("button", { class: "link", id: "leave", onclick: () => leave() }, "Sign out"))));
  top.hidden = false;
}

function show() {
  if (!state.me) return;
  const at = place();
  view?.close?.();
  frame();
  document.title = `${VIEWS[at.name].title} · ${state.me.region} · Tunny`;
  main.replaceChildren();
  main.dataset.view = at.name;
  view = VIEWS[at.name].show(main, state, at) ?? {};
}

const refresh = later(60, () => view?.update?.());

function connection(on) {
  if (state.connected === on) return;
  state.connected = on;
  frame();
}

/** Keeps a stream open, again after each end, less eagerly each time. */
async function keep(path, take, signal) {
  let wait = 500;
  while (!signal.aborted) {
    try {
      await follow(path(), (line) => {
        connection(true);
        wait = 500;
        if (line) take(line);
      }, signal);
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refused && error.status === 401) return leave("The token has ended or was revoked.");
    }
    if (signal.aborted) return;
    connection(false);
    await new Promise((done) => setTimeout(done, wait));
    wait = Math.min(wait * 2, 10_000);
  }
}

function live(line) {
  state.revision = line.revision ?? state.revision;
  state.objects = line.objects ?? state.objects;
  for (const node of line.nodes ?? []) state.nodes.set(node.name, node);
  for (const name of line.gone ?? []) state.nodes.delete(name);
  if (line.events) state.events = [...state.events, ...line.events].slice(-500);
  if (line.sample) state.samples = [...state.samples, line.sample].slice(-360);
  refresh();
}

function start() {
  streams.abort();
  streams = new AbortController();
  const { signal } = streams;
  if (looks()) {
    // Each stream begins with all that there is.
    keep(() => { state.events = []; state.nodes = new Map(); return "/v1/live"; }, live, signal);
    get("/v1/levels", signal).then((levels) => { state.levels = levels; state.samples = levels.samples; refresh(); }).catch(() => {});
  } else {
    keep(() => "/v1/watch", () => { state.changes += 1; refresh(); }, signal);
  }
  get("/v1/reasons", signal).then((list) => { state.reasons = new Map(list.map((r) => [r.name, r])); refresh(); }).catch(() => {});
}

function leave(why) {
  streams.abort();
  sign("");
  Object.assign(state, { me: undefined, nodes: new Map(), events: [], samples: [], objects: {}, connected: false });
  view?.close?.();
  view = undefined;
  top.hidden = true;
  signIn(why);
}

function signIn(why) {
  document.title = "Sign in · Tunny";
  delete main.dataset.view;
  const input = h("input", { id: "token", type: "password", name: "token", autocomplete: "off", spellcheck: "false", required: true, autofocus: true });
  const submit = async (event) => {
    event.preventDefault();
    sign(input.value.trim());
    await enter();
  };
  put(main, h("div", { class: "sign" },
    h("div", { class: "brand" }, h("img", { src: "/ui/icon.svg", alt: "" }), "Tunny"),
    h("form", { class: "card", onsubmit: submit },
      h("h1", {}, "Sign in"),
      why && h("div", { class: "note bad", role: "alert" }, why),
      h("label", {}, "Token", input),
      h("button", { class: "main", type: "submit" }, "Sign in"),
      h("p", { class: "muted small" }, "An operator makes one: ", h("code", {}, "tunny credential create ROLE"), ". It is kept for this tab alone."))));
  input.focus();
}

async function enter() {
  try {
    state.me = await get("/v1/me");
    if (state.me.access === "node") throw new Refused(403, ["This token is a node's; the dashboard is for people."]);
  } catch (error) {
    state.me = undefined;
    sign("");
    return signIn(error.message);
  }
  start();
  show();
}

/** Tells something in passing. */
state.tell = (text) => {
  say.textContent = text;
  setTimeout(() => { if (say.textContent === text) say.textContent = ""; }, 4000);
};
state.looks = looks;
state.go = (path, query) => {
  const text = new URLSearchParams(query ?? {}).toString();
  location.hash = `#/${path.map(esc).join("/")}${text ? `?${text}` : ""}`;
};

addEventListener("hashchange", () => { show(); main.focus({ preventScroll: true }); scrollTo(0, 0); });
addEventListener("keydown", (event) => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "Escape" && typing) event.target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !state.me) return;
  const digit = Number(event.key);
  if (event.key === "/") {
    event.preventDefault();
    const box = document.getElementById("q");
    if (box) box.focus();
    else state.go(["tenants"]);
  } else if (digit >= 1 && digit <= names().length) {
    state.go([names()[digit - 1]]);
  }
});

if (signedIn()) enter();
else signIn();
