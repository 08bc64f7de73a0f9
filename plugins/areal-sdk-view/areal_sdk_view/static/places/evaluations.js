// Evaluations side by side, task by task: the tasks that changed most come first. Episodes of a task side by side.

import { get, ofRun } from "../parts/api.js";
import { colour, series } from "../parts/colours.js";
import { conversation } from "../pictures/conversation.js";
import { h, link, replace } from "../parts/dom.js";
import { verdict } from "./episode.js";
import { go, href } from "../parts/route.js";
import { rows } from "../parts/table.js";
import { count, counted, percent, seconds, signed } from "../parts/words.js";

export async function evaluations(root, query) {
  const runs = query.getAll("run");
  const steps = runs.map((_, n) => query.getAll("step")[n] ?? "last");
  const answer = await get("compare/tasks", { run: runs, step: steps, split: query.get("split") ?? "" });
  const { sides } = answer;
  const move = (values) => go(["compare", "tasks"], { run: runs, step: steps, split: answer.split, ...values });
  const body = h("tbody", {}, answer.rows.map((row) => task(runs, row)));
  const table = rows(body, { onOpen: (row) => { location.hash = row.dataset.both; } });
  const head = (name) => h("th", { class: "num" }, name);
  replace(root,
    h("div", { class: "head" }, h("h1", {}, "Held-out tasks, side by side"), link(href(["compare"], { run: [...new Set(runs)] }), "curves and settings")),
    h("div", { class: "tools" },
      h("label", {}, "split", h("select", { "aria-label": "Split", onchange: (event) => move({ split: event.target.value, step: runs.map(() => "last") }) }, sides[0].splits.map((one) => h("option", { value: one, selected: one === answer.split }, one)))),
      h("span", { class: "dim" }, `${counted(answer.num_common, "task")} with a verdict on every side. Intervals of 95 %: of means a bootstrap over the tasks, which are paired; of one task by Wilson and Newcombe`)),
    h("div", { class: "panel scroll" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "run"), h("th", {}, "after step"), ["tasks", "attempts", "success", "change, points", "tasks better", "worse"].map(head))),
      h("tbody", {}, sides.map((side, n) => h("tr", {},
        h("td", { class: "name" }, mark(n), link(href(["run", side.run]), side.run)),
        h("td", {}, h("select", { "aria-label": `Evaluation of side ${n + 1}`, onchange: (event) => move({ step: steps.map((step, k) => (k === n ? event.target.value : step)) }) }, side.steps.map((step) => h("option", { value: step, selected: step === side.step }, step)))),
        h("td", { class: "num" }, count(side.num_tasks)), h("td", { class: "num" }, `${count(side.num_attempts)}${side.num_unscored ? `, ${count(side.num_unscored)} without a verdict` : ""}`),
        h("td", { class: "num" }, side.success ? [percent(side.success.value), interval(side.success, percent)] : "–"),
        n === 0 || !side.change ? [h("td"), h("td"), h("td")] : [h("td", { class: "num" }, h("b", {}, points(side.change.value)), interval(side.change, points)), h("td", { class: "num" }, count(side.num_better)), h("td", { class: "num" }, count(side.num_worse))]))))),
    h("div", { class: "panel scroll" },
      h("h2", {}, answer.rows.length < answer.num_common ? `The ${count(answer.rows.length)} tasks that changed most` : "Tasks, those first that changed most"),
      h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "task"), sides.map((side, n) => h("th", { class: "num" }, mark(n), `${side.run} · ${side.step}`)), head("change, points"), h("th", {}, "open"))), body)));
  return { keys: table.keys };
}

function task(runs, row) {
  const both = href(["compare", "episodes"], { run: runs, episode: row.sides.map((side) => side.episode) });
  const isClear = row.change.low > 0 || row.change.high < 0;
  return h("tr", { "data-both": both },
    h("td", { class: "name" }, row.task),
    row.sides.map((side) => h("td", { class: "num" }, `${side.num_success} / ${side.num}${side.num_unscored ? ` + ${side.num_unscored}` : ""}`, interval(side, percent))),
    h("td", { class: "num", style: { color: colour(row.change.value < 0 ? "bad" : row.change.value > 0 ? "good" : "dim"), "font-weight": isClear ? "700" : "400" } }, points(row.change.value), interval(row.change, points)),
    h("td", {}, link(both, row.sides.length === 2 ? "both episodes" : "the episodes")));
}

const mark = (n) => h("span", { class: "bar", style: { width: "12px", background: series(n) } });

const points = (change) => signed(Math.round(100 * change));

const interval = ({ low, high }, said) => h("span", { class: "dim" }, ` ${said(low)} to ${said(high)}`);

/** Episodes of any runs: verdicts and conversations. */
export async function beside(root, query) {
  const runs = query.getAll("run");
  const found = await Promise.all(query.getAll("episode").map((id, n) => ofRun(runs[n], "episode", { id })));
  replace(root, h("div", { class: "head" }, h("h1", {}, "Episodes side by side")), h("div", { class: "beside" }, found.map((one, n) => h("section", { class: "panel", "aria-label": `Episode ${n + 1}` },
    h("div", { class: "head" }, h("h2", {}, link(href(["run", runs[n], "episode", one.summary.id]), one.summary.id)), verdict(one)),
    h("div", { class: "facts" }, h("span", {}, "run ", link(href(["run", runs[n]]), runs[n])), h("span", {}, "task ", link(href(["run", runs[n], "task", one.task.id], { split: one.summary.split }), one.task.id)),
      h("span", {}, `version ${one.summary.version ?? "–"}`), h("span", {}, counted(one.summary.num_turns, "turn")), h("span", {}, seconds(one.summary.duration_s))),
    one.outcome.message ? h("p", { class: "problem" }, one.outcome.message) : null,
    conversation(runs[n], one).element))));
}
