// The attempts of a group side by side, aligned at the first token that differs.

import { ofRun } from "../parts/api.js";
import { colour, reward as rewardColour, rewardRange } from "../parts/colours.js";
import { h, link, replace, visible } from "../parts/dom.js";
import { fate } from "./episodes.js";
import { change, go, href } from "../parts/route.js";
import { known, largest, shade, SHADINGS, told } from "../pictures/shading.js";
import { clipped, count, number, signed } from "../parts/words.js";

export async function siblings(root, { run, rest, query }) {
  const group = rest.join("/");
  const aligned = await ofRun(run, "siblings", { group });
  const order = query.get("order") ?? "together";
  const rows = order === "reward" ? [...aligned.rows].sort((a, b) => (b.summary.reward ?? -Infinity) - (a.summary.reward ?? -Infinity)) : aligned.rows;
  const [low, high] = rewardRange(rows.map((row) => row.summary));
  const names = known(rows[0]?.columns ?? {});
  let name = names.includes(query.get("colour")) ? query.get("colour") : names[0] ?? "probability";
  let at = -1;
  const body = h("div");

  function draw() {
    replace(body, rows.map((row, n) => {
      const most = largest(row.columns, name);
      return h("div", { class: `sibling ${n === at ? "here" : ""}`, "data-id": row.summary.id },
        h("div", { class: "side" },
          h("b", { style: { background: rewardColour(row.summary.reward, low, high), padding: "0 5px" } }, number(row.summary.reward)), " ",
          row.summary.advantage === null ? null : h("span", { style: { color: colour(row.summary.advantage < 0 ? "bad" : "good") } }, signed(row.summary.advantage)),
          h("div", {}, link(href(["run", run, "episode", row.summary.id]), row.summary.id)),
          h("div", {}, `${count(row.summary.num_tokens)} tokens · `, fate(row.summary)),
          row.as_above && order !== "reward" ? h("div", {}, `as above for ${count(row.as_above)}`) : null),
        h("div", { class: "strip" }, row.texts.map((text, k) => {
          const span = document.createElement("span");
          span.textContent = visible(text).replaceAll("\n", "↵ ");
          const isAbove = order !== "reward" && k < row.as_above;
          span.className = `tok${row.columns.sampled[k] ? " sampled" : ""}${isAbove ? " above" : ""}`;
          if (!isAbove) span.style.background = shade(name, row.columns, k, most);
          span.title = told(row.columns, k).join(", ");
          return span;
        }), row.texts.length ? null : h("span", { class: "dim" }, "(it ends here)"), row.num_more ? h("span", { class: "dim" }, ` … ${count(row.num_more)} more tokens`) : null));
    }));
  }

  const move = (step) => () => {
    at = Math.min(rows.length - 1, Math.max(0, at + step));
    draw();
    body.children[at]?.scrollIntoView({ block: "nearest" });
  };
  const recolour = (next) => { name = next; change({ colour: name }, { silent: true }); draw(); };

  draw();
  replace(root,
    h("div", { class: "head" }, h("h1", {}, `Group ${group}`), h("span", { class: "dim" }, `${rows.length} attempts at `, link(href(["run", run, "task", aligned.task]), aligned.task))),
    h("div", { class: "tools" },
      h("label", {}, "colour", h("select", { "aria-label": "Colour of tokens", onchange: (event) => recolour(event.target.value) }, names.map((one) => h("option", { value: one, selected: one === name }, SHADINGS[one].label)))),
      h("button", { "aria-pressed": String(order === "reward"), onclick: () => change({ order: order === "reward" ? "" : "reward" }) }, "order by reward")),
    h("div", { class: "panel" },
      h("details", {}, h("summary", {}, `the first ${count(aligned.num_common)} tokens are the same: `, h("span", { class: "mono" }, `…${clipped(aligned.context.join("").slice(-90), 90)}`)), h("div", { class: "block data" }, aligned.prefix)),
      body));
  return {
    keys: { j: ["next attempt", move(1)], k: ["attempt before", move(-1)], Enter: ["open the attempt", () => at >= 0 && go(["run", run, "episode", rows[at].summary.id])], o: ["order by reward, or by what they share", () => change({ order: order === "reward" ? "" : "reward" })], c: ["next colour of tokens", () => recolour(names[(names.indexOf(name) + 1) % names.length])] },
  };
}
