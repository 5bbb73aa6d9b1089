// SPDX-License-Identifier: Apache-2.0
// Nodes: what each shall hold, what it has brought into force, what it found in its tables.

import { esc, post } from "./api.js";
import { ago, badge, card, empty, h, head, number, percent, put, short, table, tableName, three, tiles } from "./dom.js";
import { byState, traffic } from "./map.js";
import { dropped } from "./tenants.js";

export const title = "Nodes";

export function show(main, state, at) {
  return at.rest[0] ? one(main, state, at.rest[0]) : all(main, state, at);
}

function all(main, state, at) {
  const word = at.query.get("q") ?? "", wanted = at.query.get("state") ?? "";
  const box = h("input", { id: "q", type: "search", value: word, placeholder: "Name, cluster, address", "aria-label": "Filter nodes", oninput: () => draw() });
  const choice = h("select", { id: "state", "aria-label": "State", oninput: () => draw() }, ["", "current", "behind", "refused", "damaged", "away", "unknown"].map((s) => h("option", { value: s, selected: s === wanted }, s || "every state")));
  const place = h("div", { class: "card" });
  const sum = h("span", {});
  put(main, head("Nodes", sum), h("div", { class: "form two" }, box, choice), place);
  function draw() {
    const nodes = [...state.nodes.values()].sort(byState);
    const shown = nodes.filter((n) => (!choice.value || n.state === choice.value) && [n.name, n.cluster, n.address].some((t) => (t ?? "").includes(box.value.trim())));
    sum.textContent = `${number(shown.length)} of ${number(nodes.length)}`;
    put(place, shown.length ? table([
      ["Node", (n) => h("a", { id: `n-${n.name}`, href: `#/nodes/${esc(n.name)}` }, n.name), "lead"],
      ["Cluster", (n) => n.cluster], ["State", (n) => badge(n.state)],
      ["Intent, installed, verified", (n) => [three(n), h("span", { class: "muted small nowrap" }, ` ${n.intent} · ${n.installed} · ${n.verified}`)]],
      ["Differs", (n) => [n.drift && "changed by hand", n.faults?.length > 0 && `${n.faults.length} faults`, n.errors?.length > 0 && "refuses a change"].filter((x) => x).join(", ")],
      ["Probes", (n) => n.probes ? [badge(n.admission), n.probes.failures.length > 0 && h("span", { class: "muted small nowrap" }, ` ${n.probes.failures.length} fail`)] : ""],
      ["Traffic", (n) => traffic(n) ?? ""],
      ["Heard of", (n) => h("span", { class: "nowrap" }, ago(n.seenMs))], ["Version", (n) => n.version, "extra"]], shown.slice(0, 500), "Nodes") : empty(nodes.length ? "No node is so." : "There is no node yet."));
  }
  draw();
  return { update: draw };
}

/** What its probes came to; of each that fails the trace, in which the stage that decides stands out. */
function probes(n) {
  if (!n.probes) return [];
  const steps = (f) => h("ul", { class: "steps" }, f.steps.map((line) => {
    const [stage, ...text] = line.split(": ");
    return h("li", {}, h("span", { class: "stage" }, stage === f.stage ? h("strong", {}, stage) : stage), h("span", { class: "mono" }, text.join(": ")));
  }));
  const failed = n.probes.failures.map((f) => card(`Probe fails: ${f.scenario}`, `Vpc ${f.vpc}, engine ${f.engine}`, h("div", { class: "note bad" }, `Stage ${f.stage}: ${f.found}`), h("p", { class: "mono small" }, f.packet), steps(f)));
  const rows = [...Object.entries(n.probes.scenarios).map(([name, vpcs]) => ({ name, vpcs, how: "as intended" })), ...Object.entries(n.probes.unreachable).map(([name, vpcs]) => ({ name, vpcs, how: "no way to the NC or the router" }))];
  return [...failed, rows.length > 0 && card("Probes", `up to revision ${n.probes.revision}, through ${n.probes.engines.join(" and ")}`, table([["Scenario", (r) => r.name, "lead"], ["VPCs", (r) => number(r.vpcs), "num"], ["Outcome", (r) => r.how]], rows, "Probes"))];
}

function one(main, state, name) {
  const place = h("div", {});
  async function resync() {
    if (!confirm(`Send ${name} everything anew? What was changed there by hand goes.`)) return;
    await post(`/v1/nodes/${esc(name)}/resync`).then(() => state.tell(`${name} is sent everything anew`), (e) => state.tell(e.message));
  }
  function draw() {
    const n = state.nodes.get(name);
    if (!n) return put(main, head(name), h("div", { class: "card" }, empty(state.connected ? "There is no such node." : "…")));
    const list = (title, lines, words) => lines?.length > 0 && card(title, words, h("ul", { class: "steps" }, lines.map((line, i) => h("li", {}, h("span", { class: "stage" }, i + 1), h("span", { class: "mono" }, line)))));
    put(main,
      h("p", { class: "crumb" }, h("a", { href: "#/nodes" }, "Nodes"), " / ", n.cluster),
      head([name, " ", badge(n.state), " ", n.probes && badge(n.admission)], `${n.address || "no address known"} · version ${n.version || "unknown"} · heard of ${ago(n.seenMs)}`,
        state.me.access === "operator" && h("button", { id: "resync", onclick: resync }, "Send everything anew")),
      tiles([["Intent", number(n.intent), "revision"], ["Installed", number(n.installed), n.installed < n.intent ? `${number(n.intent - n.installed)} behind` : "all of it"], ["Verified", number(n.verified), n.verified < n.intent ? `${number(n.intent - n.verified)} behind` : "all of it"], ["Faults", number(n.faults?.length ?? 0), "in its tables"], ...(traffic(n) ? [["Packets", short(n.usage.packets), "a second"], ["Traffic", short(n.usage.bits, "bit/s")]] : [])]),
      n.drift && h("div", { class: "note warn" }, "It was changed by hand (--break-glass) and keeps that until it is sent everything anew."),
      list("Why it refuses the next change", n.errors, "it keeps forwarding by the one before"),
      list("What is not in its tables as configured", n.faults, "it is being mended"),
      ...probes(n),
      dropped(state, n.usage?.drops),
      n.usage?.levels?.length > 0 && card("Tables", "use and limit", table([["Table", (l) => tableName(l.name), "lead"], ["Used", (l) => number(l.used), "num"], ["Limit", (l) => number(l.limit), "num"], ["Level", (l) => percent(l.limit ? l.used / l.limit : 0), "num"]], n.usage.levels, "Tables")),
      h("p", { class: "small" }, h("a", { href: `#/events?q=${esc(name)}` }, "Events of this node")));
  }
  draw();
  return { update: draw };
}
