// Runs side by side: the same curves in one chart, figures, and the settings that differ.

import { get, ofRun } from "../parts/api.js";
import { AXES, axis, placeOf } from "../parts/axes.js";
import { chart } from "../pictures/chart.js";
import { series } from "../parts/colours.js";
import { h, link, replace } from "../parts/dom.js";
import { measuredLine } from "./curves.js";
import { beside, evaluations } from "./evaluations.js";
import { change, href, parse } from "../parts/route.js";
import { number } from "../parts/words.js";

const HEIGHT = 190;
const DASHES = [[], [5, 3], [2, 3], [9, 3, 2, 3], [12, 4], [4, 8]];
const dash = (n) => DASHES[(n >> 2) % DASHES.length];
const PLACES = { tasks: evaluations, episodes: beside };

export async function compare(root, [place], query) {
  if (place in PLACES) return PLACES[place](root, query);
  const names = query.getAll("run");
  const [answer, ...events] = await Promise.all([get("compare", { run: names }), ...names.map((name) => ofRun(name, "events"))]);
  let charts = [];

  function draw() {
    charts.forEach((one) => one.forget());
    const state = parse().query;
    const [over, smooth] = [state.get("axis") ?? "step", Number(state.get("smooth") ?? 0)];
    const places = events.map((one) => axis(over, one.columns));
    const common = { xLabel: AXES[over], height: HEIGHT };
    const titles = [...new Set(events.flatMap((one) => one.panels.flatMap((panel) => panel.series.map((part) => part.name))))];
    const label = new Map(events.flatMap((one) => one.panels.flatMap((panel) => panel.series.map((part) => [part.name, panel.series.length > 1 ? `${panel.title}: ${part.label}` : panel.title]))));
    charts = [...held(events, places, common), ...titles.map((title) => chart({ ...common, smooth, title: label.get(title), lines: events.map((one, n) => ({ label: names[n], colour: series(n), dash: dash(n), points: (one.columns[title] ?? []).map((y, k) => [places[n][k], y]).filter(([x]) => x !== null) })).filter((line) => line.points.length) }))];
    const choice = (name, values, text) => h("label", {}, text, h("select", { "aria-label": text, onchange: (event) => { change({ [name]: event.target.value }, { silent: true }); draw(); } }, Object.entries(values).map(([value, shown]) => h("option", { value, selected: (state.get(name) ?? Object.keys(values)[0]) === value }, shown))));
    const figures = [...new Set(names.flatMap((name) => Object.keys(answer.figures[name])))];
    const head = h("tr", {}, h("td"), names.map((name, n) => h("th", {}, h("span", { class: "bar", style: { width: "12px", background: series(n) } }), link(href(["run", name]), name))));
    const table = (title, rows) => h("div", { class: "panel scroll" }, h("h2", {}, title), h("table", {}, h("thead", {}, head.cloneNode(true)), h("tbody", {}, rows)));
    replace(root, h("div", { class: "head" }, h("h1", {}, `${names.length} runs`), names.length > 1 && names.length <= answer.max_sides ? link(href(["compare", "tasks"], { run: names }), "held-out tasks, side by side") : null),
      h("div", { class: "tools" }, choice("axis", AXES, "over"), choice("smooth", { 0: "none", 0.6: "some", 0.9: "much" }, "smoothing")),
      h("div", { class: "grid" }, charts.map((one) => h("div", { class: "panel" }, one))),
      h("div", { style: { height: "14px" } }),
      table("Figures", figures.map((name) => h("tr", {}, h("td", {}, name), names.map((run) => h("td", { class: "mono" }, number(answer.figures[run][name])))))),
      table("Settings that differ", Object.entries(answer.settings).map(([name, values]) => h("tr", {}, h("td", { class: "mono" }, name), values.map((value) => h("td", { class: "mono name" }, value === null ? "–" : JSON.stringify(value)))))));
  }

  draw();
  const axes = Object.keys(AXES);
  return {
    keys: { x: ["over steps, episodes, tokens, hours, CPU", () => { const now = parse().query.get("axis") ?? "step"; change({ axis: axes[(axes.indexOf(now) + 1) % axes.length] }, { silent: true }); draw(); }] },
    close: () => charts.forEach((one) => one.forget()),
  };

  function held(all, places, common) {
    const known = all.map((one) => one.evaluations.filter((row) => row.success !== undefined && row.success !== null));
    const lines = known.map((rows, n) => ({ label: names[n], colour: series(n), dash: dash(n), ...measuredLine(rows, "success", placeOf(all[n].columns.step, places[n])) })).filter((line) => line.points.length);
    return lines.length ? [chart({ ...common, title: "held-out success, with intervals", lines })] : [];
  }
}
