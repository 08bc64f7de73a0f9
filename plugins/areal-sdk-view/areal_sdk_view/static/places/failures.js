// What goes wrong, in groups: named, counted, and when.

import { ofRun } from "../parts/api.js";
import { colour } from "../parts/colours.js";
import { h, link, replace, s } from "../parts/dom.js";
import { change, href } from "../parts/route.js";
import { count, number, percent } from "../parts/words.js";

export async function failures(root, { run, query }) {
  const answer = await ofRun(run, "failures", { split: query.get("split") ?? "" });
  replace(root,
    h("div", { class: "tools" },
      h("label", {}, "split", h("select", { "aria-label": "Split", onchange: (event) => change({ split: event.target.value }) }, answer.splits.map((one) => h("option", { value: one, selected: one === answer.split }, one)))),
      h("span", { class: "dim" }, `${count(answer.num_failed)} of ${count(answer.num)} episodes (${percent(answer.num ? answer.num_failed / answer.num : 0)}) were dropped, failed or had no success: ${count(answer.num_groups)} groups by reason, error and last answer`)),
    h("div", { class: "panel scroll" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", { class: "num" }, "episodes"), h("th", { class: "num" }, "tasks"), h("th", {}, "kind"), h("th", {}, "text, without its numbers and quotes"), h("th", {}, "through the run"), h("th", {}, "examples"))),
      h("tbody", {}, answer.groups.map((group) => h("tr", {},
        h("td", { class: "num" }, count(group.num)), h("td", { class: "num" }, count(group.tasks)), h("td", {}, h("span", { class: "pill bad" }, group.kind.replaceAll("_", " "))), h("td", { class: "text" }, group.text),
        h("td", {}, bars(group.over)),
        h("td", {}, group.examples.map((one, n) => [n ? " " : "", link(href(["run", run, "episode", one.id]), number(one.reward) === "–" ? `v${one.version ?? "?"}` : number(one.reward))])))))),
      answer.groups.length ? null : h("p", { class: "dim" }, "Nothing went wrong.")));
}

function bars(over) {
  const [width, tall] = [144, 22];
  const most = Math.max(...over, 1);
  return s("svg", { viewBox: `0 0 ${width} ${tall}`, width, height: tall, role: "img", "aria-label": `from the beginning to the end: ${over.join(", ")}` },
    over.map((num, n) => s("rect", { x: (n * width) / over.length, y: tall - (num / most) * tall, width: width / over.length - 1, height: (num / most) * tall, fill: colour("series-2") })));
}
