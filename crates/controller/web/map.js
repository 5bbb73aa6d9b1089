// SPDX-License-Identifier: Apache-2.0
// The region at a glance: its clusters, the nodes in them and how they stand.

import { get, list } from "./api.js";
import { ago, badge, card, empty, h, head, number, percent, put, short, table, tableName, three, tiles, time, who } from "./dom.js";

export const title = "Map";

/** Nodes of a cluster that have links of their own on the map. */
const FEW = 8;

const ORDER = ["damaged", "refused", "away", "behind", "unknown", "current"];

/** The worst first. */
export const byState = (a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || a.name.localeCompare(b.name, "en", { numeric: true });

/** What a node takes in, while it is here. */
export function traffic(node) {
  const { engine, packets, bits } = node.usage ?? {};
  if (!engine || ["away", "unknown"].includes(node.state)) return undefined;
  return `${short(packets, "packets/s")} · ${short(bits, "bit/s")}`;
}

/** A link with what runs over it now: the thicker the more, in steps of ten. */
function link(from, to, nodes, href) {
  const here = nodes.filter((n) => traffic(n));
  const sum = (what) => here.reduce((all, n) => all + (n.usage[what] ?? 0), 0);
  const [packets, bits] = [sum("packets"), sum("bits")];
  const words = here.length ? `${short(packets, "packets/s")} · ${short(bits, "bit/s")}` : "nobody is here";
  const wire = h("span", { class: `wire ${here.length ? "" : "off"}`, "aria-hidden": "true" });
  wire.style.height = `${Math.min(12, 1 + Math.floor(Math.log10(1 + packets) * 1.5))}px`;
  return h("li", { class: "flowline" }, h("span", { class: "muted" }, from), wire, h("span", { class: "rate small nowrap" }, words), h("a", { href }, to));
}

function gauge(name, level, limits) {
  const tone = level >= limits.full ? "bad" : level >= limits.closed ? "warn" : "";
  const fill = h("span", { class: `fill ${tone}` });
  fill.style.width = `${Math.min(100, level * 100)}%`;
  const tick = (at) => { const t = h("span", { class: "tick" }); t.style.left = `${at * 100}%`; return t; };
  return h("div", { class: "gauge" }, h("span", {}, tableName(name)), h("span", { class: "track", role: "img", "aria-label": `${tableName(name)} ${percent(level)} of the limit` }, fill, tick(limits.closed), tick(limits.full)), h("span", { class: "value" }, percent(level)));
}

function node(n) {
  const behind = n.installed < n.intent ? `${n.intent - n.installed} behind` : n.verified < n.intent ? "installed" : "verified";
  const moving = traffic(n);
  return h("a", { class: "node", href: `#/nodes/${encodeURIComponent(n.name)}`, id: `node-${n.name}` },
    h("span", { class: "name" }, n.name, n.drift && h("span", { class: "muted small" }, " · changed by hand")),
    h("span", {}, three(n), " ", h("span", { class: "muted small" }, behind)),
    badge(n.state),
    (moving || n.state === "away") && h("span", { class: "traffic" }, [moving, n.state === "away" && `last heard of ${ago(n.seenMs)}`].filter((x) => x).join(" · ")));
}

export function show(main, state) {
  let clusters = [], tenants = 0, revision = -1, closed = false;
  async function load() {
    revision = state.revision;
    clusters = await list("/v1/objects/cluster");
    if (!closed) draw();
  }
  function cluster(c) {
    const name = c.metadata.name, nodes = [...state.nodes.values()].filter((n) => n.cluster === name).sort(byState);
    const levels = Object.entries(state.samples.at(-1)?.clusters[name] ?? {}).sort(([, a], [, b]) => b - a);
    const limits = state.levels ?? { closed: 0.7, full: 0.9 };
    return h("section", { class: "card cluster", "aria-label": `cluster ${name}` },
      h("header", {}, h("h2", {}, name), h("span", { class: "addresses mono" }, (c.spec.addresses ?? []).join(", "))),
      levels.length > 0 && h("div", { class: "gauges" }, levels.slice(0, 4).map(([table, level]) => gauge(table, level, limits))),
      nodes.length ? nodes.map(node) : empty("No node yet."));
  }
  /** From the network to a cluster, and on to its nodes as long as those are few. */
  function linksOf(c) {
    const name = c.metadata.name, nodes = [...state.nodes.values()].filter((n) => n.cluster === name);
    const inner = nodes.length <= FEW ? [...nodes].sort(byState) : [];
    return [link("network", name, nodes, `#/nodes?q=${encodeURIComponent(name)}`),
      ...inner.map((n) => link(name, n.name, [n], `#/nodes/${encodeURIComponent(n.name)}`))];
  }
  function draw() {
    const nodes = [...state.nodes.values()], current = nodes.filter((n) => n.state === "current").length;
    const bad = nodes.filter((n) => ["damaged", "refused", "away"].includes(n.state)).length;
    const o = state.objects;
    const recent = state.events.slice(-6).reverse();
    put(main,
      head("Region", `${state.me.region}, as it is now`, h("p", { class: "legend" }, h("span", {}, h("span", { class: "three", "aria-hidden": "true" }, h("i", { class: "first" }), h("i", { class: "on" }), h("i", { class: "on" })), "intent, installed, verified"), h("span", {}, "ticks: closed to new tenants, full"))),
      tiles([["Nodes current", number(current), `of ${number(nodes.length)}`], bad > 0 && ["Need a look", number(bad)], ["Tenants", number(o.Tenant)], ["VPCs", number(o.Vpc)], ["VMs", number(o.Vm)], ["Routes", number(o.Route)], ["Revision", number(state.revision)]]),
      clusters.length > 0 && card("Links", "what comes in, a second", h("ul", { class: "links", "aria-label": "Links" }, clusters.flatMap(linksOf))),
      clusters.length ? h("div", { class: "cards few" }, clusters.map(cluster)) : h("div", { class: "card" }, empty("There is no cluster yet. ", h("code", {}, "tunny apply"), " a Cluster and its Nodes, and they are here.")),
      recent.length > 0 && card("Lately", h("a", { href: "#/events" }, "All events"), table([
        ["Time", (e) => h("a", { class: "nowrap", href: `#/events?around=${e.time_ms}`, title: "what happened around then" }, time(e.time_ms))],
        ["What", (e) => e.what, "lead"], ["Outcome", (e) => badge(e.outcome)], ["By", (e) => who(e.user), "nowrap"],
        ["Note", (e) => e.note ?? "", "muted free"]], recent, "Latest events")));
  }
  draw();
  load().catch((e) => state.tell(e.message));
  return {
    update() {
      draw();
      if (state.revision !== revision) load().catch((e) => state.tell(e.message));
    },
    close() { closed = true; },
  };
}
