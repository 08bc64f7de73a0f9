// What goes wrong, in groups: named by what the episodes have in common, counted, and when.

import { isExported, ofRun } from "../parts/api.js";
import { colour } from "../parts/colours.js";
import { h, link, replace, s } from "../parts/dom.js";
import { change, go, href } from "../parts/route.js";
import { rows } from "../parts/table.js";
import { count, number, percent } from "../parts/words.js";

export async function failures(root, { run, query }) {
  const answer = await ofRun(run, "failures", { split: query.get("split") ?? "" });
  const body = h("tbody", {}, answer.groups.map((group) => row(run, group, answer.versions)));
  const table = rows(body, { onOpen: (one) => isExported() || go(...members(run, one.dataset.id)) });
  const isEstimate = answer.groups.some((group) => group.is_estimate);
  replace(root,
    h("div", { class: "tools" },
      h("label", {}, "split", h("select", { "aria-label": "Split", onchange: (event) => change({ split: event.target.value }) }, answer.splits.map((one) => h("option", { value: one, selected: one === answer.split }, one)))),
      h("span", { class: "dim" }, `${count(answer.num_failed)} of ${count(answer.num)} episodes (${percent(answer.num ? answer.num_failed / answer.num : 0)}) were dropped, failed or had no success: ${count(answer.num_groups)} groups that ended alike`,
        isEstimate ? `. ≈: estimated from ${count(answer.max_read)} episodes of the kind, drawn by their ids` : "")),
    h("div", { class: "panel scroll" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", { class: "num" }, "episodes"), h("th", { class: "num" }, "tasks"), h("th", {}, "kind"), h("th", {}, "in common, without numbers and quotes"), h("th", {}, "over the versions"), h("th", {}, "examples"))), body),
      answer.groups.length ? null : h("p", { class: "dim" }, "Nothing went wrong.")));
  return { keys: table.keys };
}

const members = (run, id) => [["run", run, "episodes"], { failure: id }];

function row(run, group, versions) {
  const num = `${group.is_estimate ? "≈ " : ""}${count(group.num)}`;
  return h("tr", { "data-id": group.id },
    h("td", { class: "num" }, isExported() ? num : link(href(...members(run, group.id)), num)), h("td", { class: "num" }, count(group.tasks)), h("td", {}, h("span", { class: "pill bad" }, group.kind.replaceAll("_", " "))),
    h("td", { class: "common" }, Object.entries(group.name).map(([field, text]) => h("div", {}, h("span", { class: "dim" }, `${field} `), h("span", { class: "mono" }, text))), Object.keys(group.name).length ? null : h("span", { class: "dim" }, group.is_rare ? `${count(group.num_endings)} rare endings` : "nothing but the kind")),
    h("td", {}, bars(group.over, versions)),
    h("td", { class: "examples" }, group.examples.map((one, n) => [n ? " " : "", link(href(["run", run, "episode", one.id]), number(one.reward) === "–" ? `v${one.version ?? "?"}` : number(one.reward))])));
}

function bars(over, [low, high]) {
  const [width, tall] = [144, 22];
  const most = Math.max(...over, 1);
  return s("svg", { viewBox: `0 0 ${width} ${tall}`, width, height: tall, role: "img", "aria-label": `from version ${low} to ${high}: ${over.join(", ")}` },
    over.map((num, n) => s("rect", { x: (n * width) / over.length, y: tall - (num / most) * tall, width: width / over.length - 1, height: (num / most) * tall, fill: colour("series-2") })));
}
