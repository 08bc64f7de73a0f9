// The logs of the run's processes, each from its end.

import { isExported, ofRun } from "../parts/api.js";
import { h, replace } from "../parts/dom.js";
import { change } from "../parts/route.js";
import { count } from "../parts/words.js";

export async function logs(root, { run, query }) {
  const none = (why) => void replace(root, h("div", { class: "panel dim" }, `No logs here: ${why}.`));
  if (isExported()) return none("an exported page holds none");
  const read = (until = "") => ofRun(run, "logs", { name: query.get("name") ?? "", until });
  let answer = await read();
  const body = h("pre", { class: "block log", tabindex: 0, role: "region", "aria-label": "Log" });
  const find = h("input", { type: "search", placeholder: "Lines with …", "aria-label": "Lines with this text", value: query.get("find") ?? "", oninput: () => { change({ find: find.value }, { silent: true }); draw(); } });
  const more = h("button", { onclick: earlier }, "Earlier");

  function draw() {
    const needle = find.value.toLowerCase();
    const lines = needle ? answer.text.split("\n").filter((line) => line.toLowerCase().includes(needle)) : [answer.text];
    replace(body, lines.join("\n") || (answer.text ? "No line that was read has this text." : "This log is empty: the process printed nothing."));
    more.hidden = !answer.since;
    replace(more, `Earlier: ${count(answer.since)} bytes are left`);
  }

  async function earlier() {
    const after = answer; // a refresh may replace it meanwhile
    more.disabled = true;
    const before = await read(after.since).finally(() => { more.disabled = false; });
    answer = { ...before, text: before.text + after.text };
    draw();
    more.focus();
  }

  const names = Object.keys(answer.sizes);
  if (!names.length) return none("the run had no processes of its own");
  draw();
  replace(root, h("div", { class: "tools" }, h("label", {}, "log", h("select", { "aria-label": "Log", onchange: (event) => change({ name: event.target.value }) }, names.map((one) => h("option", { value: one, selected: one === answer.name }, `${one}, ${count(answer.sizes[one])} bytes`)))), find, more), h("div", { class: "panel" }, body));
  body.scrollIntoView({ block: "end" });
  return { keys: { "/": ["find lines", () => find.focus()] }, refresh: async () => { if (!answer.since || body.scrollTop + body.clientHeight >= body.scrollHeight - 4) { answer = await read(); draw(); } } };
}
