// SPDX-License-Identifier: Apache-2.0
// Tenants, VPCs and VMs: found by the controller among millions, and what is known of each.

import { esc, get, list } from "./api.js";
import { badge, card, empty, h, head, later, number, put, short, table, three, tiles, trouble } from "./dom.js";

export const title = "Tenants";
export const forTenants = true;

/** VMs and routes of a VPC that are shown. */
const MEMBERS = 100;

/** Where an object's page is. */
const page = (o) => o.kind === "Tenant" ? `#/tenants/${esc(o.name)}` : o.kind === "Node" ? `#/nodes/${esc(o.name)}` : `#/tenants/${esc(o.kind.toLowerCase())}/${esc(o.name)}`;

export function show(main, state, at) {
  if (at.rest.length >= 2) return object(main, state, at.rest[0], at.rest.slice(1).join("/"));
  return at.rest.length === 1 ? tenant(main, state, at.rest[0]) : search(main, state, at);
}

function search(main, state, at) {
  let stop = new AbortController();
  const box = h("input", { id: "q", type: "search", value: at.query.get("q") ?? "", placeholder: "Name, VNI, address or prefix  ( / )", "aria-label": "Search tenants, VPCs and VMs", autocomplete: "off", spellcheck: "false" });
  const place = h("div", { class: "card", "aria-busy": "false" }), sum = h("span", {}, " ");
  put(main, head("Tenants", sum), box, place);
  async function run() {
    stop.abort();
    stop = new AbortController();
    const word = box.value.trim(), begun = performance.now();
    history.replaceState(null, "", word ? `#/tenants?q=${esc(word)}` : "#/tenants");
    place.setAttribute("aria-busy", "true");
    try {
      const found = await get(`/v1/search?q=${esc(word)}&limit=100`, stop.signal);
      const n = found.objects.length;
      sum.textContent = word ? `${number(n)}${found.more ? " and more" : ""} found in ${Math.max(1, Math.round(performance.now() - begun))} ms${found.more ? "; say more to see the rest" : ""}` : `${found.more ? `The first ${number(n)}` : number(n)}. Type to search tenants, VPCs, VMs, NCs and nodes.`;
      const walks = place.contains(document.activeElement);
      put(place, n ? results(found.objects) : empty(word ? ["Nothing here has ", h("code", {}, word), " in its name or address."] : "There is no tenant yet."));
      // Who walks through the list stays at the same object, or in the list, when an answer comes late.
      if (walks && !place.contains(document.activeElement)) (place.querySelector("td.lead a") ?? box).focus();
    } catch (error) {
      if (error.name !== "AbortError") put(place, h("div", { class: "body" }, trouble(error)));
    }
    place.setAttribute("aria-busy", "false");
  }
  const soon = later(120, run);
  box.addEventListener("input", soon);
  box.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") place.querySelector("a")?.focus();
  });
  place.addEventListener("keydown", (event) => {
    const links = [...place.querySelectorAll("td.lead a")], here = links.indexOf(document.activeElement);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || here < 0) return;
    event.preventDefault();
    (links[here + step] ?? (step < 0 ? box : links[here])).focus();
  });
  run();
  let known = [state.revision, state.changes];
  return {
    update() {
      if (known[0] === state.revision && known[1] === state.changes) return;
      known = [state.revision, state.changes];
      // What is found anew must not take the focus of who walks through the list.
      if (!place.contains(document.activeElement)) soon();
    },
    close() { stop.abort(); },
  };
}

function results(objects) {
  const name = (o) => [h("span", { class: "kind" }, o.kind), h("a", { id: `found-${o.kind}-${o.name}`, href: page(o) }, o.name)];
  return table([
    ["Name", name, "lead"], ["VPC", (o) => o.kind === "Vpc" ? "" : o.vpc ?? ""], ["VNI", (o) => o.vni ?? "", "num extra"],
    ["Addresses", (o) => (o.addresses ?? []).join(", "), "mono"], ["On", (o) => o.nc ?? "", "extra"],
    ["Tenant", (o) => o.tenant && o.kind !== "Tenant" ? h("a", { href: `#/tenants/${esc(o.tenant)}` }, o.tenant) : ""], ["Cluster", (o) => o.cluster ?? ""]], objects, "Found");
}

/** Where an object is held. */
function holders(nodes) {
  return card("On nodes", `${number(nodes.length)}`, nodes.length ? table([
    ["Node", (n) => n.node, "lead"], ["Cluster", (n) => n.cluster], ["State", (n) => badge(n.state)],
    ["Since, installed, verified", (n) => [three({ ...n, intent: n.since }), h("span", { class: "muted small nowrap" }, ` ${n.since} · ${n.installed} · ${n.verified}`)]]], nodes, "Nodes") : empty("No node holds it: no cluster serves it."));
}

/** Drops by reason, with what to do. */
export function dropped(state, drops) {
  const rows = Object.entries(drops ?? {}).filter(([, n]) => n > 0).sort(([, a], [, b]) => b - a);
  if (!rows.length) return undefined;
  const why = (name) => state.reasons?.get(name) ?? {};
  return card("Dropped", "packets a second, by reason", table([
    ["Reason", ([r]) => h("code", {}, r), "lead"], ["A second", ([, n]) => number(n), "num"], ["What happened", ([r]) => why(r).meaning ?? ""], ["What to do", ([r]) => why(r).advice ?? ""]], rows, "Drops"));
}

function tenant(main, state, name) {
  let closed = false;
  async function load() {
    try {
      const t = await get(`/v1/tenants/${esc(name)}`);
      const first = t.listed[0] && await get(`/v1/describe/vpc/${esc(t.listed[0].name)}`);
      if (closed) return;
      const more = t.vpcs > t.listed.length ? `the first ${number(t.listed.length)} of ${number(t.vpcs)}` : undefined;
      put(main,
        h("p", { class: "crumb" }, h("a", { href: "#/tenants" }, "Tenants")),
        head(t.name, t.cluster ? `served by cluster ${t.cluster}` : "no cluster serves it"),
        tiles([["VPCs", number(t.vpcs)], ["VMs", number(t.vms)], ["Routes", number(t.routes)], ["Entries", number(t.vms + t.routes)], ["Traffic", short(t.bits, "bit/s")], ["Served", t.path ? (t.path === "fast" ? "fast path" : "in software") : "nowhere", t.why], ["Packets in software", t.packets[0] ? `${Math.round(100 * t.packets[1] / t.packets[0])} %` : "none", `${number(t.packets[1])} of ${number(t.packets[0])} a second`]]),
        dropped(state, t.drops),
        card("VPCs", more, t.listed.length ? table([
          ["VPC", (v) => h("a", { href: `#/tenants/vpc/${esc(v.name)}` }, v.name), "lead"], ["VNI", (v) => v.vni, "num"], ["VMs", (v) => number(v.vms), "num"], ["Routes", (v) => number(v.routes), "num"], ["Traffic", (v) => short(v.bits, "bit/s"), "num"]], t.listed.slice(0, 200), "VPCs") : empty("It owns no VPC.")),
        first && holders(first.nodes));
    } catch (error) {
      if (!closed) put(main, head(name), trouble(error));
    }
  }
  load();
  return { update: later(1000, load), close() { closed = true; } };
}

/** VMs and routes of a VPC, as many as are shown. */
function members(vms, routes) {
  const sum = (list) => list.length < MEMBERS ? number(list.length) : `the first ${MEMBERS}; search finds the others`;
  const name = (vm) => vm.metadata?.name ?? `${vm.spec.vpc}/${vm.spec.addresses[0]}`;
  return [
    card("VMs", sum(vms), vms.length ? table([
      ["VM", (v) => h("a", { href: `#/tenants/vm/${esc(name(v))}` }, name(v)), "lead"], ["Addresses", (v) => v.spec.addresses.join(", "), "mono"], ["MAC", (v) => v.spec.mac, "mono extra"], ["On", (v) => v.spec.nc]], vms, "VMs") : empty("It has no VM.")),
    card("Routes", sum(routes), routes.length ? table([
      ["Prefix", (r) => h("span", { class: "mono" }, r.spec.prefix), "lead"], ["Scope", (r) => r.spec.scope], ["Peer", (r) => r.spec.peer ?? ""]], routes, "Routes") : empty("It has no route.")),
  ];
}

/** A value in words. */
function words(value) {
  if (Array.isArray(value)) return value.map(words).join(", ");
  if (value && typeof value === "object") return Object.entries(value).map(([k, v]) => `${k} ${words(v)}`).join(", ");
  return String(value);
}

function object(main, state, kind, name) {
  let closed = false;
  async function load() {
    try {
      const d = await get(`/v1/describe/${esc(kind)}/${esc(name)}`);
      const of = (kind) => list(`/v1/objects/${kind}?vpc=${esc(name)}&limit=${MEMBERS}`);
      const inside = kind === "vpc" ? await Promise.all([of("vm"), of("route")]) : undefined;
      if (closed) return;
      const spec = Object.entries(d.object.spec ?? {});
      const vm = d.object.kind === "Vm";
      put(main,
        h("p", { class: "crumb" }, h("a", { href: "#/tenants" }, "Tenants"), d.object.spec?.vpc && [" / ", h("a", { href: `#/tenants/vpc/${esc(d.object.spec.vpc)}` }, d.object.spec.vpc)]),
        head(name, `${d.object.kind}, as of revision ${number(d.revision)}`,
          vm && h("a", { class: "button", href: `#/trace?from=${esc(name)}` }, "Trace from here"), " ", vm && h("a", { class: "button", href: `#/trace?to=${esc(name)}` }, "Trace to here")),
        card("As configured", undefined, h("ul", { class: "steps" }, spec.map(([key, value]) => h("li", {}, h("span", { class: "stage" }, key), h("span", { class: "mono" }, words(value)))))),
        inside && members(...inside),
        holders(d.nodes));
    } catch (error) {
      if (!closed) put(main, head(name), trouble(error));
    }
  }
  load();
  return { update: later(1000, load), close() { closed = true; } };
}
