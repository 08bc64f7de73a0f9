// The list of runs, and the choice of some to compare.

import { get } from "../parts/api.js";
import { h, link, replace } from "../parts/dom.js";
import { change, go, href } from "../parts/route.js";
import { ago, count, moment, number } from "../parts/words.js";
import { noteOf } from "../parts/note.js";
import { rows } from "../parts/table.js";

export async function runs(root, parts, query) {
  let list = await get("runs");
  const chosen = new Set(query.getAll("run"));
  const body = h("tbody");
  const search = h("input", { type: "search", placeholder: "Filter by name, agent, model, algorithm, tag, note …", "aria-label": "Filter runs", value: query.get("find") ?? "", oninput: () => { change({ find: search.value }, { silent: true }); draw(); } });
  const button = h("button", { onclick: together }, "Compare");
  const table = rows(body, { onOpen: (row) => go(["run", row.dataset.run]) });

  function together() {
    if (chosen.size) go(["compare"], { run: list.map((row) => row.run).filter((name) => chosen.has(name)) });
  }

  function draw() {
    const words = search.value.toLowerCase().split(/\s+/);
    const shown = list.filter((run) => words.every((word) => `${run.run} ${run.agent} ${run.model} ${run.algorithm} ${run.state} ${run.tags.join(" ")} ${run.note}`.toLowerCase().includes(word)));
    replace(button, chosen.size ? `Compare ${chosen.size}` : "Compare");
    button.disabled = chosen.size < 2;
    const focused = document.activeElement.matches("td input") && document.activeElement.ariaLabel;
    replace(body, shown.map((run) => h("tr", { "data-run": run.run },
      h("td", {}, h("input", { type: "checkbox", "aria-label": `Choose ${run.run}`, checked: chosen.has(run.run), onchange: (event) => { if (event.target.checked) chosen.add(run.run); else chosen.delete(run.run); draw(); } })),
      h("td", { class: "name" }, link(href(["run", run.run]), run.run), noteOf(run), run.problem ? h("div", { class: "dim" }, run.problem.slice(0, 160)) : null),
      h("td", {}, h("span", { class: `pill ${run.state}` }, run.state)),
      h("td", {}, run.agent), h("td", {}, run.model), h("td", {}, run.algorithm),
      h("td", { class: "num" }, run.total_steps ? `${count(run.steps)} / ${count(run.total_steps)}` : count(run.steps)),
      h("td", { class: "num" }, held(run.held_out)),
      h("td", { class: "num", title: moment(run.began) }, ago(run.began)))));
    if (!shown.length) replace(body, h("tr", {}, h("td", { colspan: 9, class: "dim" }, list.length ? "No run is like that." : "No runs here yet: areal-sdk train writes into ./runs.")));
    table.restore();
    [...body.querySelectorAll("input")].find((one) => one.ariaLabel === focused)?.focus();
  }

  replace(root, h("div", { class: "head" }, h("h1", {}, "Runs"), h("span", { class: "dim" }, `${list.length}`)),
    h("div", { class: "tools" }, search, button),
    h("div", { class: "panel scroll" }, h("table", {}, h("thead", {}, h("tr", {},
      ["chosen", "run", "state", "agent", "model", "algorithm"].map((name) => h("th", {}, name)), ["steps", "held-out", "began"].map((name) => h("th", { class: "num" }, name)))), body)));
  draw();
  return {
    refresh: async () => { list = await get("runs"); draw(); },
    keys: { ...table.keys, "/": ["filter", () => search.focus()], x: ["choose the run at hand", () => table.here()?.querySelector("input").click()], c: ["compare those that are chosen", together] },
  };
}

function held(change) {
  if (!change) return "–";
  const [before, after] = [change.before, change.after].map((value) => (value === null ? "·" : number(value)));
  return `${change.measure} ${before} → ${after}`;
}
