// The curves of a run, what happened beside them, and the ledger as a picture.

import { ofRun } from "../parts/api.js";
import { AXES, axis, placeOf } from "../parts/axes.js";
import { chart } from "../pictures/chart.js";
import { colour, series } from "../parts/colours.js";
import { h, link, replace } from "../parts/dom.js";
import { ledger } from "../pictures/ledger.js";
import { change, href, parse } from "../parts/route.js";
import { count, number, seconds, signed } from "../parts/words.js";

const FIRST = ["training reward"];
const NUM_STRIKING = 7;
const QUIET = ["checkpoint", "note"];

export async function curves(root, { run, about, query }) {
  const asked = { names: query.get("names") ?? "" };
  let events = await ofRun(run, "events", asked);
  let striking = (await ofRun(run, "episodes", { order: "surprising", limit: NUM_STRIKING })).rows;
  let charts = [];

  function draw() {
    charts.forEach((one) => one.forget());
    const state = readState();
    const { columns } = events;
    const xs = axis(state.axis, columns);
    const place = placeOf(columns.step, xs);
    const marks = events.happened.map((one) => ({ x: place(one.step), text: `${one.kind}: ${one.text}`, colour: colour(QUIET.includes(one.kind) ? "dim" : "bad"), faint: QUIET.includes(one.kind) }));
    const common = { events: marks, xLabel: AXES[state.axis], smooth: state.smooth, range: state.range, log: state.log, onZoom: zoom };
    const points = (name) => (columns[name] ?? []).map((y, n) => [xs[n], y]).filter(([x]) => x !== null);
    const panel = ({ title, series: parts }, height) => chart({ ...common, title, height, href: href(["run", run, "curves"], { ...Object.fromEntries(parse().query), panel: title }), lines: parts.filter((one, n) => n === 0 || !isSame(columns[one.name], columns[parts[0].name])).map((one) => ({ label: one.label, points: points(one.name) })) });
    const held = measured(events.evaluations, place, { ...common, range: state.range ?? [0, xs.at(-1) ?? 1] });
    const first = events.panels.filter((one) => FIRST.includes(one.title)).map((one) => panel(one, 230));
    const more = events.names.filter((name) => asked.names && name in columns && !events.panels.some((one) => one.series.some((part) => part.name === name)))
      .map((name) => panel({ title: name, series: [{ name, label: name.split("/").at(-1) }] }, 140));
    const rest = [...events.panels.filter((one) => !FIRST.includes(one.title)).map((one) => panel(one, 140)), ...warmUp(events.warm_up), ...more];
    charts = [...held, ...first, ...rest];
    const single = state.panel ? charts.find((one) => one.querySelector("h2")?.textContent === state.panel) : null;
    if (single) {
      single.querySelector("canvas").style.height = "60vh";
      const wide = events.panels.find((one) => one.title === state.panel);
      charts = wide ? [panel(wide, Math.round(innerHeight * 0.6))] : [single];
      replace(root, tools(state), h("div", { class: "panel" }, charts), h("p", {}, h("a", { href: href(["run", run, "curves"]) }, "all curves")));
      return;
    }
    replace(root, tools(state),
      h("div", { class: "two" }, h("div", {}, [...held, ...first].map((one) => h("div", { class: "panel" }, one)), notices(events.happened)),
        h("div", {}, h("div", { class: "panel" }, h("h2", {}, "Every episode, accounted for"), ledger(run, about.ledger)), now(about), look(run, striking))),
      columns.step?.length ? null : h("p", { class: "panel dim" }, "No step is made yet: curves begin with the first one."),
      h("div", { class: "grid" }, rest.map((one) => h("div", { class: "panel" }, one))));
  }

  function tools(state) {
    const choice = (name, values, label) => h("label", {}, label, h("select", { "aria-label": label, onchange: (event) => { change({ [name]: event.target.value }, { silent: true }); draw(); } },
      Object.entries(values).map(([value, text]) => h("option", { value, selected: String(state[name]) === value }, text))));
    return h("div", { class: "tools" },
      choice("axis", AXES, "over"),
      choice("smooth", { 0: "none", 0.6: "some", 0.9: "much" }, "smoothing"),
      h("button", { "aria-pressed": String(state.log), onclick: () => { change({ log: state.log ? "" : 1 }, { silent: true }); draw(); } }, "log"),
      state.range ? h("button", { onclick: () => zoom() }, "all steps") : h("span", { class: "dim" }, "drag over a chart to zoom, or ← → and Enter at both ends"),
      h("input", { class: "wide", type: "search", "aria-label": "Further metrics", placeholder: `any of ${events.names.length} metrics: a regular expression`, value: asked.names, onchange: (event) => change({ names: event.target.value }) }));
  }

  function zoom(from, to) {
    change({ from: from === undefined ? "" : from.toPrecision(6), to: to === undefined ? "" : to.toPrecision(6) }, { silent: true });
    draw();
  }

  const cycle = (name, values) => () => {
    const now = String(readState()[name]);
    change({ [name]: values[(values.indexOf(now) + 1) % values.length] }, { silent: true });
    draw();
  };

  draw();
  return {
    keys: { x: ["over steps, episodes, tokens, hours", cycle("axis", Object.keys(AXES))], s: ["smoothing", cycle("smooth", ["0", "0.6", "0.9"])], "/": ["find a metric", () => root.querySelector("input").focus()], z: ["all steps", () => zoom()] },
    close: () => charts.forEach((one) => one.forget()),
    refresh: async (fresh) => { about = fresh; events = await ofRun(run, "events", asked); draw(); },
  };
}

const isSame = (one, other) => one.every((value, n) => value === other[n]);

function readState() {
  const { query } = parse();
  const range = query.get("from") ? [Number(query.get("from")), Number(query.get("to"))] : null;
  return { axis: query.get("axis") ?? "step", smooth: Number(query.get("smooth") ?? 0), log: query.get("log") === "1", panel: query.get("panel"), range };
}

/** Held-out success, reward and loss, each split a line with its interval. */
function measured(evaluations, place, common) {
  return ["success", "reward", "loss"].map((measure) => {
    const splits = [...new Set(evaluations.filter((row) => row[measure] !== undefined && row[measure] !== null).map((row) => row.split ?? "eval"))];
    if (!splits.length || (measure === "reward" && evaluations.every((row) => row.reward === row.success))) return null;
    const lines = splits.map((split) => {
      const rows = evaluations.filter((row) => (row.split ?? "eval") === split && row[measure] !== undefined && row[measure] !== null);
      return { label: split, dots: true, points: rows.map((row) => [place(row.step), row[measure]]), band: rows.filter((row) => `${measure}_low` in row).map((row) => [place(row.step), row[`${measure}_low`], row[`${measure}_high`]]) };
    });
    return chart({ ...common, smooth: 0, title: `held-out ${measure}`, height: 170, lines });
  }).filter(Boolean);
}

function warmUp({ step, loss }) {
  if (!step.length) return [];
  return [chart({ title: "loss of the supervised warm-up", height: 140, lines: [{ label: "loss", colour: series(6), points: step.map((at, n) => [at, loss[n]]) }] })];
}

function now(about) {
  if (!about.is_running || !about.live) return null;
  return h("div", { class: "panel" }, h("h2", {}, "Now"), h("p", { class: "dim" }, about.live.note || `step ${count(about.live.step)} after ${seconds(about.live.elapsed_s)}`),
    h("table", {}, h("tbody", {}, about.waits.slice(0, 8).map((wait) => h("tr", {}, h("td", {}, wait.name), h("td", { class: "num" }, seconds(wait.waited_s)))))));
}

/** The newest of the episodes that turned out most unlike their siblings. */
function look(run, rows) {
  if (!rows.length) return null;
  return h("div", { class: "panel" }, h("h2", {}, "Most unlike their siblings"), h("table", {}, h("tbody", {}, rows.map((one) => h("tr", {},
    h("td", { class: "num" }, number(one.reward)), h("td", { class: "num", style: { color: colour(one.advantage < 0 ? "bad" : "good") } }, signed(one.advantage)),
    h("td", {}, link(href(["run", run, "episode", one.id]), one.id)), h("td", {}, one.group ? link(href(["run", run, "group", one.group]), "siblings") : ""), h("td", { class: "num" }, `v${one.version ?? "–"}`))))));
}

function notices(happened) {
  const told = happened.filter((one) => one.kind !== "checkpoint");
  if (!told.length) return null;
  return h("div", { class: "panel" }, h("h2", {}, "What the run said"), told.slice(-6).map((one) => h("p", {}, h("span", { class: `pill ${one.kind === "note" ? "" : "bad"}` }, `${one.kind}, step ${one.step}`), " ", one.text)));
}
