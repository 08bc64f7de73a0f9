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
const QUIET = ["checkpoint", "evaluation", "note"];

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
    const marks = [...events.evaluations.map((one) => ({ kind: "evaluation", step: one.step ?? 0, text: one.name ?? one.split ?? "" })), ...events.happened].map((one) => ({ x: place(one.step), text: `${one.kind}: ${one.text}`, colour: colour(QUIET.includes(one.kind) ? "dim" : "bad"), faint: QUIET.includes(one.kind) }));
    const common = { events: marks, xLabel: AXES[state.axis], smooth: state.smooth, range: state.range, log: state.log, onZoom: zoom };
    const points = (name) => (columns[name] ?? []).map((y, n) => [xs[n], y]).filter(([x]) => x !== null);
    const oldest = (columns["batch/staleness_max"] ?? []).map((most, n) => [xs[n], columns["batch/staleness"]?.[n] ?? null, most]).filter((point) => !point.includes(null));
    const isExtra = (name) => asked.names && name in columns && !events.panels.some((one) => one.series.some((part) => part.name === name));
    const panels = [...events.panels, ...events.names.filter(isExtra).map((name) => ({ title: name, series: [{ name, label: name.split("/").at(-1) }] }))];
    const described = [...measured(events.evaluations, place, { smooth: 0, range: state.range ?? [0, xs.at(-1) ?? 1] }),
      ...panels.map(({ title, series: parts }) => ({ title, height: FIRST.includes(title) ? 230 : 140, lines: parts.filter((one, n) => n === 0 || !isSame(columns[one.name], columns[parts[0].name])).map((one) => ({ label: one.label, points: points(one.name), band: one.name === "batch/staleness" ? oldest : [] })) })),
      ...warmUp(events.warm_up)].filter((one) => !state.panel || one.title === state.panel);
    charts = described.map((one) => chart({ ...common, href: href(["run", run, "curves"], { ...Object.fromEntries(parse().query), panel: one.title }), ...one, ...(state.panel ? { height: Math.round(innerHeight * 0.6) } : {}) }));
    const framed = (isFirst) => charts.filter((_, n) => (described[n].height > 140) === isFirst).map((one) => h("div", { class: "panel" }, one));
    if (state.panel) {
      replace(root, tools(state), charts.map((one) => h("div", { class: "panel" }, one)), h("p", {}, link(href(["run", run, "curves"]), "all curves")));
      return;
    }
    const begun = columns.step?.length ? null : h("div", { class: "panel dim" }, "No step is made yet: curves begin with the first one.");
    replace(root, tools(state),
      h("div", { class: "two" }, h("div", {}, begun, framed(true), notices(events.happened)),
        h("div", {}, h("div", { class: "panel" }, h("h2", {}, "Every episode, accounted for"), ledger(run, about.ledger, about.is_running)), now(about), look(run, striking))),
      h("div", { class: "grid" }, framed(false)));
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
    keys: { x: ["over steps, episodes, tokens, hours, CPU", cycle("axis", Object.keys(AXES))], s: ["smoothing", cycle("smooth", ["0", "0.6", "0.9"])], "/": ["find a metric", () => root.querySelector("input").focus()], z: ["all steps", () => zoom()] },
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
  return ["success", "reward", "loss"].flatMap((measure) => {
    const known = evaluations.filter((row) => row[measure] !== undefined && row[measure] !== null);
    if (!known.length || (measure === "reward" && evaluations.every((row) => row.reward === row.success))) return [];
    const lines = [...new Set(known.map((row) => row.split ?? "eval"))].map((split) => ({ label: split, ...measuredLine(known.filter((row) => (row.split ?? "eval") === split), measure, place) }));
    return [{ ...common, title: `held-out ${measure}`, height: 170, lines }];
  });
}

/** The points of evaluations, with intervals where they have one. */
export function measuredLine(rows, measure, place) {
  const [low, high] = [`${measure}_low`, `${measure}_high`];
  return { dots: true, points: rows.map((row) => [place(row.step), row[measure]]), band: rows.filter((row) => low in row).map((row) => [place(row.step), row[low], row[high]]) };
}

function warmUp({ step, loss }) {
  if (!step.length) return [];
  return [{ title: "loss of the supervised warm-up", height: 140, events: [], range: null, xLabel: "step of the warm-up", lines: [{ label: "loss", colour: series(6), points: step.map((at, n) => [at, loss[n]]) }] }];
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
