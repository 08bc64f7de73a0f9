// Trainer, publisher, engine, gate and agents on one clock. Waiting is drawn as waiting.

import { isExported, ofRun } from "../parts/api.js";
import { colour, version as versionColour } from "../parts/colours.js";
import { h, replace } from "../parts/dom.js";
import { change, go, parse } from "../parts/route.js";
import { count, number, seconds } from "../parts/words.js";

const [LEFT, GAP] = [78, 8];
const HEIGHTS = { trainer: 22, planned: 14, publisher: 12, engine: 42, gate: 42 };
const COLOURS = { wait: "series-5", waiting: "series-5", step: "series-1", answered: "series-1", publish: "series-4", update: "series-4", running: "series-3", held: "series-2" };
const DONE = { wait: "waits for episodes", step: "computes", publish: "publishes weights" };
const LEGEND = [["series-5", "waits: the trainer for episodes, a call for its first token"], ["series-1", "computes a step, answers calls"], ["series-4", "publishes, takes weights"], ["series-3", "episodes that run; evaluation"], ["series-2", "kept empty by the gate; dropped"]];

export async function lanes(root, { run }) {
  const { query } = parse();
  const answer = await ofRun(run, "lanes", { until: query.get("until") ?? "", seconds: query.get("seconds") ?? "" });
  if (!answer.agents.length && !answer.bars.length && !query.has("until")) return void replace(root, h("div", { class: "panel dim" }, "No episode has ended yet: lanes begin with the first one."));
  const length = answer.until - answer.since;
  const row = Math.max(3, Math.min(14, Math.floor(420 / Math.max(1, answer.agents.length))));
  const canvas = h("canvas", { tabindex: 0, role: "img", "aria-label": spoken(answer, length) });
  const told = h("div", { class: "readout", "aria-live": "polite" }, h("span", { class: "dim" }, "Point at a bar, or use ← →; a click or Enter opens the episode."));
  const plan = h("span", { class: "dim" });
  let [planned, boxes, at] = [[], [], -1]; // `at`: the episode that the arrow keys are at

  function draw() {
    const ratio = devicePixelRatio || 1;
    const width = canvas.clientWidth;
    if (!width) return;
    const tops = places(planned.length > 0);
    const height = tops.agents + answer.agents.length * row + 26;
    canvas.style.height = `${height}px`;
    [canvas.width, canvas.height] = [width * ratio, height * ratio];
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
    const part = (one, lane, who) => {
      const [tall, isWait] = [HEIGHTS[lane], one.kind === "wait"];
      bar(one, tops[lane] + (isWait ? tall / 2 - 2 : 0), isWait ? 4 : tall, colour(COLOURS[one.kind]), `step ${one.step}: ${who} ${DONE[one.kind]}, ${seconds(one.end - one.begin)}`);
    };
    area(pen, answer.engine, ["answered", "waiting"], tops.engine, HEIGHTS.engine, x, answer);
    area(pen, answer.gate, ["running", "held"], tops.gate, HEIGHTS.gate, x, answer);
    for (const one of answer.bars) {
      if (one.kind === "update") bar(one, tops.engine, 6, colour("series-4"), `the engine takes the weights of step ${one.step}, ${seconds(one.end - one.begin)}`);
      else part(one, one.kind === "publish" ? "publisher" : "trainer", "the trainer");
    }
    for (const one of planned) part(one, "planned", "the plan says that the trainer");
    answer.agents.forEach((lane, n) => lane.forEach((one) => bar(one, tops.agents + n * row, row - 1, one.dropped ? colour("series-2") : versionColour(one.version), `${one.id}: version ${one.version ?? "–"}, reward ${number(one.reward)}, ${seconds(one.end - one.begin)}${one.dropped ? `, dropped: ${one.dropped}` : ""}`, one.id)));
    const here = boxes.filter((box) => box.id)[at];
    pen.strokeStyle = colour("ink");
    if (here) pen.strokeRect(here.a - 1, here.y - 1, here.b - here.a + 2, here.tall + 2);
    pen.strokeStyle = colour("series-3");
    for (const time of answer.measured.filter((one) => one > answer.since && one < answer.until)) { pen.beginPath(); pen.moveTo(x(time), 0); pen.lineTo(x(time), height - 18); pen.stroke(); }
    pen.fillStyle = colour("dim");
    for (const [name, top] of Object.entries(tops)) pen.fillText(name, 4, top + 11);
    pen.fillText(`most ${number(most(answer.engine, ["answered", "waiting"]), 2)}`, 4, tops.engine + 26);
    if (answer.gate.most) pen.fillText(`of ${count(answer.gate.most)}`, 4, tops.gate + 26);
    const ticks = width < 500 ? 2 : 5;
    for (let n = 0; n <= ticks; n += 1) { const text = seconds((n / ticks) * length); pen.fillText(text, x(answer.since + (n / ticks) * length) - (n === ticks ? pen.measureText(text).width : 0), height - 5); }
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

  async function predict() {
    replace(plan, "areal-sdk plan simulates the run …");
    try {
      const again = await ofRun(run, "plan", { since: answer.since, until: answer.until });
      planned = again.bars;
      replace(plan, `planned, at the run's own speeds: ${seconds(again.predicted_s)} a step; measured: ${seconds(again.measured_s)}`);
      draw();
    } catch (error) { replace(plan, error.message); }
  }

  const shift = (share) => () => change({ until: Math.min(answer.range[1], Math.max(answer.range[0] + length, answer.until + share * length)).toFixed(3) });
  const zoom = (factor) => () => change({ seconds: Math.max(0.5, length * factor).toFixed(2), until: answer.until.toFixed(3) });
  const key = ([name, text]) => h("span", { class: "scale" }, h("i", { style: { background: colour(name) } }), text);
  replace(root,
    h("div", { class: "tools" }, h("button", { onclick: shift(-0.8) }, "← earlier"), h("button", { onclick: shift(0.8) }, "later →"), h("button", { onclick: zoom(0.5) }, "closer"), h("button", { onclick: zoom(2) }, "farther"),
      isExported() ? null : h("button", { onclick: predict }, "Predict the trainer"),
      h("span", { class: "dim" }, `${seconds(length)} that end ${seconds(answer.until - answer.range[0])} after the first episode began${answer.num_left_out ? `; ${count(answer.num_left_out)} episodes are left out` : ""}${answer.engine.is_estimate ? "; calls are estimated from some of the episodes" : ""}`), plan),
    h("div", { class: "panel" }, canvas, told, h("div", { class: "facts" }, LEGEND.map(key), h("span", {}, "the colour of an episode is the version of its weights"))));
  return { keys: { "[": ["earlier", shift(-0.8)], "]": ["later", shift(0.8)], "+": ["closer", zoom(0.5)], "-": ["farther", zoom(2)], ...(isExported() ? {} : { p: ["predict the trainer", predict] }) } };
}

/** The top of each lane. */
function places(hasPlan) {
  const tops = {};
  let y = 4;
  for (const [lane, tall] of Object.entries(HEIGHTS)) if (lane !== "planned" || hasPlan) { tops[lane] = y; y += tall + GAP; }
  return { ...tops, agents: y };
}

const most = (counts, names) => Math.max(1, ...counts[names[0]].map((num, n) => num + counts[names[1]][n]));

/** Counts on top of each other, over the window. */
function area(pen, counts, names, top, tall, x, { since, until }) {
  const high = most(counts, names);
  const num = counts[names[0]].length;
  for (let n = 0; n < num; n += 1) {
    const [a, b] = [n, n + 1].map((edge) => Math.round(x(since + (edge / num) * (until - since))));
    let y = top + tall;
    for (const name of names) {
      const size = (counts[name][n] / high) * tall;
      pen.globalAlpha = name === "held" ? 0.22 : 1;
      pen.fillStyle = colour(COLOURS[name]);
      pen.fillRect(a, y - size, b - a, size);
      y -= size;
    }
  }
  pen.globalAlpha = 1;
  pen.fillStyle = colour("line");
  pen.fillRect(x(since), top + tall, x(until) - x(since), 1);
}

function spoken(answer, length) {
  const share = (kind) => answer.bars.filter((one) => one.kind === kind).reduce((sum, one) => sum + one.end - one.begin, 0) / length;
  const waits = `the trainer waits for ${Math.round(100 * share("wait"))} % and computes for ${Math.round(100 * share("step"))} %`;
  return `${answer.agents.length} lanes of agents, and those of trainer, publisher, engine and gate over ${seconds(length)}: ${waits}`;
}
