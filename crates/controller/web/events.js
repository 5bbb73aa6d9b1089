// SPDX-License-Identifier: Apache-2.0
// Who changed what, or tried to; and what else happened around a time.

import { get } from "./api.js";
import { badge, card, empty, h, head, later, number, put, table, time, who } from "./dom.js";

export const title = "Events";

const SHOWN = 300;

const changes = (e) => Object.entries(e.counts ?? {}).map(([kind, c]) => `${kind} +${c.added} ~${c.changed} −${c.removed}`).join(", ");
const local = (ms) => new Date(ms).toISOString().slice(0, 19);

export function show(main, state, at) {
  let around = Number(at.query.get("around")) || 0, list = [], closed = false;
  const field = (id, type, value, more) => h("input", { id, type, value, oninput: () => draw(), ...more });
  const text = field("q", "search", at.query.get("q") ?? "", { placeholder: "Who, what, note", "aria-label": "Filter" });
  const outcome = h("select", { id: "outcome", oninput: () => draw() }, ["", "committed", "refused", "unchanged", "damaged", "drift", "connected", "made", "revoked", "done"].map((o) => h("option", { value: o, selected: o === at.query.get("outcome") }, o || "every outcome")));
  const when = h("input", { id: "around", type: "datetime-local", step: 1, value: around ? local(around) : "", onchange: () => turn() });
  const within = h("select", { id: "within", onchange: () => turn() }, [[60, "1 minute"], [300, "5 minutes"], [3600, "1 hour"], [86400, "1 day"]].map(([s, words]) => h("option", { value: s, selected: String(s) === (at.query.get("within") ?? "300") }, words)));
  const place = h("div", { class: "card" }), sum = h("span", {});
  put(main, head("Events and audit", sum), h("div", { class: "filters" }, h("label", { class: "wide" }, "Filter", text), h("label", {}, "Outcome", outcome), h("label", {}, "Within", within), h("label", { class: "wide" }, "Around, UTC", when), h("button", { onclick: () => state.go(["events"]) }, "Clear")), place);
  const turn = () => {
    const ms = when.value ? Date.parse(`${when.value}Z`) : 0;
    const query = Object.entries({ around: ms || "", within: within.value, q: text.value, outcome: outcome.value }).filter(([, v]) => v);
    state.go(["events"], Object.fromEntries(query));
  };
  async function load() {
    list = await get(around ? `/v1/events?around=${around}&within=${within.value}` : "/v1/events?limit=1000");
    if (!closed) draw();
  }
  const again = later(400, () => load().catch((e) => state.tell(e.message)));
  function draw() {
    const word = text.value.trim().toLowerCase();
    const fits = (e) => (!outcome.value || e.outcome === outcome.value) && (!word || [e.what, e.note, e.user, e.from, e.outcome, changes(e)].some((t) => (t ?? "").toLowerCase().includes(word)));
    const found = list.filter(fits).reverse(), shown = found.slice(0, SHOWN);
    sum.textContent = `${number(found.length)}${around ? ` around ${time(around)}` : ""}, the latest first${found.length > SHOWN ? `; ${SHOWN} are shown` : ""}`;
    put(place, shown.length ? table([
      ["Time", (e) => h("a", { class: "nowrap", href: `#/events?around=${e.time_ms}`, title: "what happened around then" }, time(e.time_ms))],
      ["What", (e) => e.what, "lead"], ["Outcome", (e) => badge(e.outcome)], ["Revision", (e) => number(e.generation), "num"],
      ["By", (e) => h("div", {}, h("span", { class: "nowrap" }, who(e.user)), h("div", { class: "muted small mono" }, e.from))],
      ["Changes", (e) => changes(e)], ["Note", (e) => e.note ?? "", "free"]], shown, "Events") : empty("Nothing like this has happened."));
  }
  draw();
  load().catch((e) => state.tell(e.message));
  return { update() { if (!around) again(); }, close() { closed = true; } };
}
