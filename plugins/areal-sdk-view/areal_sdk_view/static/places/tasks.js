// Tasks through training: which are learnt, flaky or lost, and every attempt at one of them by version.

import { isExported, ofRun } from "../parts/api.js";
import { chart } from "../pictures/chart.js";
import { colour, reward as rewardColour, rewardRange } from "../parts/colours.js";
import { h, link, replace, s } from "../parts/dom.js";
import { fate } from "./episodes.js";
import { change, go, href } from "../parts/route.js";
import { rows } from "../parts/table.js";
import { count, number, percent, signed } from "../parts/words.js";

const MEANING = { learnt: "better at the end than at the beginning, beyond chance", known: "high all along", flaky: "between, and not clearly better", lost: "worse at the end than at the beginning", never: "low all along", new: "too few attempts to say" };

export async function tasks(root, { run, query }) {
  const answer = await ofRun(run, "tasks", { split: query.get("split") ?? "" });
  const became = query.get("became") ?? "";
  const shown = answer.rows.filter((row) => !became || row.became === became);
  const body = h("tbody");
  const table = rows(body, { onOpen: (row) => go(["run", run, "task", row.dataset.task]) });
  replace(body, shown.map((row) => h("tr", { "data-task": row.task },
    h("td", { class: "name" }, link(href(["run", run, "task", row.task]), row.task)),
    h("td", {}, h("span", { class: `pill ${["lost", "never"].includes(row.became) ? "bad" : ""}`, title: MEANING[row.became] }, row.became)),
    h("td", { class: "num" }, count(row.num)), h("td", { class: "num" }, number(row.first)), h("td", { class: "num" }, number(row.last)), h("td", { class: "num" }, row.change === null ? "–" : signed(row.change)),
    h("td", {}, row.spark ? spark(row.spark, answer.range) : ""))));
  replace(root,
    h("div", { class: "tools" },
      h("label", {}, "split", h("select", { "aria-label": "Split", onchange: (event) => change({ split: event.target.value }) }, answer.splits.map((one) => h("option", { value: one, selected: one === answer.split }, one)))),
      h("button", { class: "chip", "aria-current": String(!became), onclick: () => change({ became: "" }) }, `all ${count(answer.num)}`),
      Object.entries(answer.counts).filter(([, num]) => num).map(([name, num]) => h("button", { class: "chip", title: MEANING[name], "aria-current": String(became === name), onclick: () => change({ became: name }) }, `${name} ${count(num)}`)),
      answer.num > answer.rows.length ? h("span", { class: "dim" }, `the ${answer.rows.length} that changed most`) : null,
      isExported() || !answer.num_evaluations ? null : link(href(["compare", "tasks"], { run: [run, run], step: ["first", "last"] }), "the first evaluation against the last")),
    h("div", { class: "panel scroll" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "task"), h("th", {}, "became"), ["attempts", "first third", "last third", "change"].map((name) => h("th", { class: "num" }, name)), h("th", {}, "reward through training"))), body)));
  return { keys: table.keys };
}

function spark(values, [low, high]) {
  const [width, tall] = [120, 22];
  const y = (value) => tall - 2 - ((value - low) / (high - low || 1)) * (tall - 4);
  const points = values.map((value, n) => `${(n / Math.max(1, values.length - 1)) * width},${y(value)}`).join(" ");
  return s("svg", { viewBox: `0 0 ${width} ${tall}`, width, height: tall, role: "img", "aria-label": values.map((value) => number(value, 2)).join(", ") }, s("polyline", { points, fill: "none", stroke: colour("series-1"), "stroke-width": 1.6 }));
}

export async function task(root, { run, rest, query }) {
  const id = rest.join("/");
  const answer = await ofRun(run, "task", { task: id, split: query.get("split") ?? "" });
  const [low, high] = rewardRange(answer.attempts);
  const body = h("tbody");
  const table = rows(body, { onOpen: (row) => go(["run", run, "episode", row.dataset.id]) });
  const picked = spread(answer.attempts, 60);
  replace(body, picked.map((one) => h("tr", { "data-id": one.id },
    h("td", { class: "num" }, one.version ?? ""), h("td", { class: "num", style: { background: rewardColour(one.reward, low, high) } }, number(one.reward)), h("td", {}, link(href(["run", run, "episode", one.id]), one.id)),
    h("td", {}, one.group ? link(href(["run", run, "group", one.group]), "siblings") : ""), h("td", {}, fate(one)), h("td", { class: "num" }, count(one.num_tokens)), h("td", { class: "text" }, one.error ?? one.text))));
  const plot = chart({
    title: "reward by version: the mean of neighbouring attempts, with its interval", height: 220, xLabel: "version",
    lines: [{ label: "mean", dots: true, points: answer.band.map((one) => [one.version, one.mean]), band: answer.band.map((one) => [one.version, one.low, one.high]) }],
  });
  replace(root,
    h("div", { class: "head" }, h("h1", {}, `Task ${id}`), h("span", { class: "dim" }, `${count(answer.num)} attempts${answer.errors ? `, ${count(answer.errors)} without a reward` : ""}`), link(href(["run", run, "episodes"], { task: id }), "all of them"),
      ...(answer.splits.length > 1 ? answer.splits.map((one) => (one === answer.split ? h("b", {}, one) : link(href(["run", run, "task", id], { split: one }), one))) : [])),
    h("div", { class: "panel" }, plot),
    answer.changes.length ? h("div", { class: "panel" }, h("h2", {}, "The token that changed most between two weights"), answer.changes.map((one) => h("p", {},
      link(href(["run", run, "episode", one.id], { colour: "change", token: one.token }), one.id), ": ", h("code", {}, JSON.stringify(one.text)), ` ${percent(Math.exp(one.before))} → ${percent(Math.exp(one.after))}, from ${one.from} to ${one.to}`))) : null,
    h("div", { class: "panel scroll" }, h("h2", {}, picked.length < answer.attempts.length ? `${picked.length} of its attempts, from the first to the last` : "Its attempts"), h("table", {}, h("thead", {}, h("tr", {}, ["version", "reward"].map((name) => h("th", { class: "num" }, name)), ["episode", "group", "fate"].map((name) => h("th", {}, name)), h("th", { class: "num" }, "tokens"), h("th", {}, "last answer"))), body)));
  return { keys: table.keys, close: plot.forget };
}

/** At most `num` of the items, evenly spread, the last one included. */
function spread(items, num) {
  if (items.length <= num) return items;
  return Array.from({ length: num }, (_, n) => items[Math.round((n * (items.length - 1)) / (num - 1))]);
}
