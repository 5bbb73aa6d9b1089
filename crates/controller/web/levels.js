// SPDX-License-Identifier: Apache-2.0
// Water levels over time, a chart a table, a line a cluster, beside the levels at which a cluster closes and is full.

import { get } from "./api.js";
import { chart } from "./chart.js";
import { card, empty, h, head, percent, put, table, tableName } from "./dom.js";

export const title = "Levels";

export function show(main, state, at) {
  const day = at.query.get("span") === "day";
  let samples = day ? [] : state.samples, closed = false;
  const limits = () => state.levels ?? { closed: 0.7, full: 0.9 };
  async function load() {
    samples = (await get(`/v1/levels?day=true`)).samples;
    if (!closed) draw();
  }
  function draw() {
    const { closed: close, full } = limits();
    const tables = new Map();
    for (const sample of samples) {
      for (const [cluster, levels] of Object.entries(sample.clusters)) {
        for (const [name, level] of Object.entries(levels)) {
          const series = tables.get(name) ?? tables.set(name, new Map()).get(name);
          const points = series.get(cluster) ?? series.set(cluster, []).get(cluster);
          points.push([sample.timeMs, level]);
        }
      }
    }
    const span = day ? 86_400_000 : 3_600_000, now = samples.at(-1)?.timeMs ?? Date.now();
    const from = Math.max(now - span, Math.min(samples[0]?.timeMs ?? now, now - 60_000));
    const peak = (series) => Math.max(...[...series.values()].map((points) => points.at(-1)[1]));
    const charts = [...tables].sort(([a, x], [b, y]) => peak(y) - peak(x) || a.localeCompare(b)).map(([name, series]) => card(tableName(name), percent(peak(series)),
      h("div", { class: "body" }, chart(tableName(name), [...series].sort().map(([name, points]) => ({ name, points })), [[close, "warn", "closed"], [full, "bad", "full"]], [from, now], day ? 300_000 : 10_000))));
    const last = samples.at(-1)?.clusters ?? {};
    const rows = Object.entries(last).flatMap(([cluster, levels]) => Object.entries(levels).map(([name, level]) => ({ cluster, name, level }))).sort((a, b) => b.level - a.level);
    const button = (text, pressed, query) => h("button", { "aria-pressed": String(pressed), onclick: () => state.go(["levels"], query) }, text);
    put(main,
      head("Water levels", "How full each cluster's tables are: the highest of its nodes", h("div", { class: "seg", role: "group", "aria-label": "Span" }, button("Hour", !day, {}), button("Day", day, { span: "day" }))),
      charts.length ? h("div", { class: "cards" }, charts) : h("div", { class: "card" }, empty("Nothing has been measured yet.")),
      rows.length > 0 && card("Now", undefined, table([
        ["Table", (r) => tableName(r.name), "lead"], ["Cluster", (r) => r.cluster], ["Level", (r) => percent(r.level), "num"],
        ["", (r) => r.level >= full ? h("span", { class: "badge bad" }, "full") : r.level >= close ? h("span", { class: "badge warn" }, "closed") : h("span", { class: "badge ok" }, "open")]], rows, "Levels now")));
  }
  draw();
  if (day) load().catch((e) => state.tell(e.message));
  return { update() { if (!day) { samples = state.samples; draw(); } }, close() { closed = true; } };
}
