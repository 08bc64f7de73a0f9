// Agents, trainer and evaluations on one clock. Waiting is drawn as waiting.

import { ofRun } from "../parts/api.js";
import { colour, version as versionColour } from "../parts/colours.js";
import { h, replace } from "../parts/dom.js";
import { change, go, parse } from "../parts/route.js";
import { count, seconds } from "../parts/words.js";

const [LEFT, TRAINER, GAP] = [70, 26, 14];
const KINDS = { wait: ["series-5", "trainer waits for episodes"], step: ["series-1", "step computed"], publish: ["series-4", "weights published"] };

export async function lanes(root, { run }) {
  const { query } = parse();
  const answer = await ofRun(run, "lanes", { until: query.get("until") ?? "", seconds: query.get("seconds") ?? "" });
  const length = answer.until - answer.since;
  const row = Math.max(3, Math.min(14, Math.floor(420 / Math.max(1, answer.agents.length))));
  const height = TRAINER + GAP + answer.agents.length * row + 30;
  const canvas = h("canvas", { tabindex: 0, role: "img", "aria-label": `${answer.agents.length} lanes of agents and one of the trainer over ${seconds(length)}`, style: { height: `${height}px` } });
  const told = h("div", { class: "readout", "aria-live": "polite" }, h("span", { class: "dim" }, "Point at a bar, or use ← →; a click or Enter opens the episode."));
  let boxes = [];
  let at = -1; // the episode that the arrow keys are at

  function draw() {
    const ratio = devicePixelRatio || 1;
    const width = canvas.clientWidth;
    if (!width) return;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    const x = (time) => LEFT + Math.min(1, Math.max(0, (time - answer.since) / length)) * (width - LEFT - 8);
    boxes = [];
    const bar = (one, y, tall, fill, text, id) => {
      const [a, b] = [x(one.begin), x(one.end)];
      pen.fillStyle = fill;
      pen.fillRect(a, y, Math.max(0.6, b - a - 0.4), tall);
      boxes.push({ a, b: Math.max(b, a + 2), y, tall, text, id });
    };
    pen.fillStyle = colour("dim");
    pen.fillText("trainer", 4, 17);
    pen.fillText("agents", 4, TRAINER + GAP + 10);
    for (const one of answer.trainer) bar(one, one.kind === "wait" ? 12 : 4, one.kind === "wait" ? 4 : 20, colour(KINDS[one.kind][0]), `step ${one.step}: ${KINDS[one.kind][1]}, ${seconds(one.end - one.begin)}`);
    answer.agents.forEach((lane, n) => lane.forEach((one) => bar(one, TRAINER + GAP + n * row, row - 1, one.dropped ? colour("series-2") : versionColour(one.version), `${one.id}: version ${one.version ?? "–"}, reward ${one.reward ?? "–"}, ${seconds(one.end - one.begin)}${one.dropped ? `, dropped: ${one.dropped}` : ""}`, one.id)));
    const here = boxes.filter((box) => box.id)[at];
    pen.strokeStyle = colour("ink");
    if (here) pen.strokeRect(here.a - 1, here.y - 1, here.b - here.a + 2, here.tall + 2);
    pen.strokeStyle = colour("series-3");
    for (const one of answer.measured) { pen.beginPath(); pen.moveTo(x(one.time), 0); pen.lineTo(x(one.time), height - 18); pen.stroke(); }
    pen.fillStyle = colour("dim");
    for (let n = 0; n <= 5; n += 1) pen.fillText(seconds((n / 5) * length), x(answer.since + (n / 5) * length) - (n === 5 ? 36 : 0), height - 5);
  }

  const found = (event) => {
    const [px, py] = [event.offsetX, event.offsetY];
    return boxes.findLast((box) => px >= box.a && px <= box.b && py >= box.y && py <= box.y + box.tall);
  };
  canvas.addEventListener("pointermove", (event) => { const box = found(event); if (box) replace(told, box.text); });
  canvas.addEventListener("keydown", (event) => {
    if (!boxes.length) draw(); // a key may come before the observer has drawn for the first time
    const episodes = boxes.filter((box) => box.id);
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Enter" && episodes[at]) go(["run", run, "episode", episodes[at].id]);
    if (!step || !episodes.length) return;
    event.preventDefault();
    at = Math.min(episodes.length - 1, Math.max(0, at + step));
    replace(told, episodes[at].text);
    draw();
  });
  canvas.addEventListener("click", (event) => { const box = found(event); if (box?.id) go(["run", run, "episode", box.id]); });
  new ResizeObserver(draw).observe(canvas);

  const shift = (share) => () => change({ until: Math.min(answer.range[1], Math.max(answer.range[0] + length, answer.until + share * length)).toFixed(3) });
  const zoom = (factor) => () => change({ seconds: Math.max(0.5, length * factor).toFixed(2), until: answer.until.toFixed(3) });
  const key = ([name, text]) => h("span", { class: "scale" }, h("i", { style: { background: colour(name) } }), text);
  replace(root,
    h("div", { class: "tools" }, h("button", { onclick: shift(-0.8) }, "← earlier"), h("button", { onclick: shift(0.8) }, "later →"), h("button", { onclick: zoom(0.5) }, "closer"), h("button", { onclick: zoom(2) }, "farther"),
      h("span", { class: "dim" }, `${seconds(length)} that end ${seconds(answer.until - answer.range[0])} after the first episode${answer.num_left_out ? `; ${count(answer.num_left_out)} episodes are left out` : ""}`)),
    h("div", { class: "panel" }, canvas, told, h("div", { class: "facts" }, Object.values(KINDS).map(key), key(["series-2", "dropped"]), key(["series-3", "evaluation"]), h("span", {}, "the colour of an episode is the version of its weights"))));
  return { keys: { "[": ["earlier", shift(-0.8)], "]": ["later", shift(0.8)], "+": ["closer", zoom(0.5)], "-": ["farther", zoom(2)] } };
}
