// Episodes beside each other, of any runs: verdicts and conversations.

import { ofRun } from "../parts/api.js";
import { h, link, replace } from "../parts/dom.js";
import { verdict } from "./episode.js";
import { conversation } from "../pictures/conversation.js";
import { href } from "../parts/route.js";
import { counted, seconds } from "../parts/words.js";

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
