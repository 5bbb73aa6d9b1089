// SPDX-License-Identifier: Apache-2.0
// Which way a packet would take: over which gateways, through which stages, and to what end.

import { esc, get, post } from "./api.js";
import { card, empty, h, head, later, number, put, table, trouble } from "./dom.js";

export const title = "Trace";
export const forTenants = true;

export function show(main, state, at) {
  const q = at.query;
  const suggestions = h("datalist", { id: "vms" });
  const suggest = later(120, async (word) => {
    if (word.length < 2) return;
    const found = await get(`/v1/search?q=${esc(word)}&limit=12`).catch(() => ({ objects: [] }));
    put(suggestions, found.objects.filter((o) => o.kind === "Vm").map((o) => h("option", { value: o.name }, `${(o.addresses ?? []).join(", ")} in ${o.vpc}`)));
  });
  const end = (id, words, value) => h("input", { id, list: "vms", value: value ?? "", placeholder: words, autocomplete: "off", spellcheck: "false", required: true, oninput: (e) => suggest(e.target.value.trim()) });
  const from = end("from", "VM, or VPC/address", q.get("from")), to = end("to", "VM, VPC/address or address", q.get("to"));
  const protocol = h("select", { id: "protocol" }, ["tcp", "udp", "icmp"].map((p) => h("option", { selected: p === q.get("protocol") }, p)));
  const port = h("input", { id: "port", type: "number", min: 1, max: 65535, value: q.get("port") ?? 80 });
  const go = h("button", { class: "main", type: "submit" }, "Trace");
  const place = h("div", { class: "stack" });
  const form = h("form", { class: "form", onsubmit: (event) => { event.preventDefault(); run(); } }, h("label", { class: "wide" }, "From", from), h("label", { class: "wide" }, "To", to), h("label", {}, "Protocol", protocol), h("label", {}, "Port", port), go);
  put(main, head("Trace", "Which way a packet would take, stage by stage"), form, suggestions, place);
  put(place, h("div", { class: "card" }, empty("Name who sends and to whom.")));
  async function run() {
    const asked = { from: from.value.trim(), to: to.value.trim(), protocol: protocol.value, port: Number(port.value) || 0 };
    history.replaceState(null, "", `#/trace?${new URLSearchParams(asked)}`);
    go.disabled = true;
    try {
      draw(place, await post("/v1/trace", asked), asked, state);
    } catch (error) {
      put(place, trouble(error));
    }
    go.disabled = false;
  }
  if (from.value && to.value) run();
  else (from.value ? to : from).focus();
  return {};
}

function draw(place, t, asked, state) {
  const arrow = () => h("div", { class: "arrow", "aria-hidden": "true" }, "→");
  const hop = (name, where, kind) => h("div", { class: `hop ${kind ?? ""}` }, h("b", {}, name), h("span", { class: "muted small" }, where));
  const arrives = t.verdict === "forward", lost = t.verdict === "drop" || !t.cluster;
  const target = t.destination;
  const hops = [hop(t.source.vm, `${t.source.address} in ${t.source.vpc}`, "end"), hop(t.source.nc, "host, VXLAN"), hop(t.cluster ? `cluster ${t.cluster}` : "no cluster", t.cluster ? "gateway" : "serves the sender", lost ? "lost" : "")];
  if (arrives && t.cluster) {
    if (target.nc) hops.push(hop(target.nc, "host, VXLAN"));
    hops.push(hop(target.vm || target.address, target.vm ? `${target.address} in ${target.vpc}` : "outside", "end"));
  }
  const verdict = !t.cluster ? "No cluster serves the sender's VPC, so no gateway takes the packet. By its configuration it would end so: " : "";
  let stage = "";
  const steps = t.steps.map((s) => {
    const name = s.stage === stage ? "" : s.stage;
    stage = s.stage;
    return h("li", {}, h("span", { class: "stage" }, name), h("span", {}, s.text || h("span", { class: "muted" }, "passed")));
  });
  put(place, 
    h("div", { class: "card" }, h("div", { class: "body" }, h("div", { class: "path", "aria-label": "Path" }, hops.flatMap((x, i) => i ? [arrow(), x] : [x])))),
    h("div", { class: `note ${lost ? "bad" : "ok"}`, id: "verdict" }, verdict, h("strong", {}, t.verdict), t.reason && [" · ", h("code", {}, t.reason)], t.reason && h("div", {}, state.reasons?.get(t.reason)?.meaning), t.advice && h("div", {}, "What to do: ", t.advice)),
    card("Stages", `${asked.protocol} over ${t.basis} at revision ${number(t.revision)}`, h("ol", { class: "steps" }, steps)),
    t.changed.length > 0 && card("What the gateway changes", undefined, table([["Field", (c) => c.field, "lead"], ["Before", (c) => c.before || "(none)", "mono"], ["After", (c) => c.after || "(none)", "mono"]], t.changed, "Changed fields")),
    h("p", { class: "muted small" }, "The controller runs the gateway's own stages over the tables that its intent asks for, with a made-up underlay. What a node has in fact: ", h("code", {}, "tunny trace"), " on its machine."));
}
