// What keeps the run from learning: the likely cause first, with its evidence and its cure.

import { ofRun } from "../parts/api.js";
import { h, link, replace } from "../parts/dom.js";
import { href } from "../parts/route.js";
import { count } from "../parts/words.js";

export async function why(root, { run }) {
  async function draw() {
    const answer = await ofRun(run, "why");
    replace(root,
      answer.failed ? h("p", { class: "problem" }, `ended by ${answer.failed}`) : null,
      answer.num_unreadable ? h("p", { class: "dim" }, `${count(answer.num_unreadable)} episodes of the sample cannot be read`) : null,
      answer.findings.length ? null : h("div", { class: "panel" }, h("p", {}, `No fault found; ${answer.course}`)),
      answer.findings.map((finding, n) => about(run, finding, n === 0)));
  }
  await draw();
  return { refresh: draw };
}

function about(run, finding, isFirst) {
  const kind = [finding.costs_time ? "costs time alone" : "", finding.warns_early ? "" : "told by the harm, not before it"].filter(Boolean).join("; ");
  return h("section", { class: "panel" },
    h("h2", {}, h("span", { class: "pill bad" }, isFirst ? "likely" : "also"), ` ${finding.fault} `, h("span", { class: "dim" }, `since step ${finding.since}${kind ? `; ${kind}` : ""}`)),
    h("p", {}, finding.found),
    finding.evidence.length ? h("ul", {}, finding.evidence.map((one) => h("li", {}, one))) : null,
    finding.first ? h("p", { class: "dim" }, `moved first: ${finding.first.metric} at step ${finding.first.step}, `, link(href(["run", run, "curves"], { names: finding.first.metric }), "its curve")) : null,
    h("p", {}, h("b", {}, finding.cure)));
}
