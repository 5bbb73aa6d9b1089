// SPDX-License-Identifier: Apache-2.0
// Lines over time. The axis of shares is always the whole, so that a picture never makes a small thing look large.

import { h, percent, s, time } from "./dom.js";

const W = 360, H = 170, LEFT = 38, RIGHT = 6, TOP = 10, BOTTOM = 22;

/** A chart of series `{name, points: [[ms, share]]}`, one each `step`, with limits `[share, tone, words]`. */
export function chart(label, series, limits, [from, to], step) {
  const x = (ms) => LEFT + (W - LEFT - RIGHT) * (ms - from) / Math.max(1, to - from);
  const y = (share) => TOP + (H - TOP - BOTTOM) * (1 - Math.min(1, share));
  const grid = [0, 0.25, 0.5, 0.75, 1].map((share) => [s("line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: y(share), y2: y(share) }), s("text", { x: LEFT - 6, y: y(share) + 4, "text-anchor": "end" }, `${share * 100}%`)]);
  const ticks = [0, 0.5, 1].map((part) => s("text", { x: LEFT + (W - LEFT - RIGHT) * part, y: H - 6, "text-anchor": ["start", "middle", "end"][part * 2] }, time(from + (to - from) * part).slice(0, -3)));
  const lines = limits.map(([share, tone, words]) => [s("line", { class: `limit ${tone}`, x1: LEFT, x2: W - RIGHT, y1: y(share), y2: y(share) }), s("text", { class: tone, x: LEFT + 3, y: y(share) - 3 }, words)]);
  const paths = series.map((one, i) => {
    let d = "", last = -Infinity;
    for (const [ms, share] of one.points) {
      // Where nothing was measured there is no line.
      d += `${d && ms - last < 3 * step ? "L" : "M"}${x(ms).toFixed(1)} ${y(share).toFixed(1)}`;
      last = ms;
    }
    // A point by itself is seen as a dot.
    return s("path", { class: `series l${i % 6 + 1}`, d: d && `${d}h.01` });
  });
  const cross = s("line", { class: "cross", y1: TOP, y2: H - BOTTOM, visibility: "hidden" });
  const picture = s("svg", { class: "chart", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${label}: ${series.map((o) => `${o.name} ${percent(o.points.at(-1)?.[1] ?? 0)}`).join(", ")}` }, grid, lines, ticks, paths, cross);
  const value = series.map((one) => h("b", {}, percent(one.points.at(-1)?.[1] ?? 0)));
  const when = h("span", { class: "muted" });
  const legend = h("div", { class: "legend" }, series.map((one, i) => h("span", {}, h("i", { class: `swatch s${i % 6 + 1}` }), one.name, value[i])), when);
  const at = (ms) => {
    series.forEach((one, i) => {
      const near = one.points.reduce((best, p) => Math.abs(p[0] - ms) < Math.abs(best[0] - ms) ? p : best, one.points.at(-1) ?? [0, 0]);
      value[i].textContent = percent(near[1]);
    });
  };
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const ms = from + (to - from) * Math.min(1, Math.max(0, ((event.clientX - box.left) / box.width * W - LEFT) / (W - LEFT - RIGHT)));
    cross.setAttribute("x1", x(ms));
    cross.setAttribute("x2", x(ms));
    cross.setAttribute("visibility", "visible");
    when.textContent = time(ms);
    at(ms);
  });
  picture.addEventListener("pointerleave", () => { cross.setAttribute("visibility", "hidden"); when.textContent = ""; at(Infinity); });
  return [picture, legend];
}
