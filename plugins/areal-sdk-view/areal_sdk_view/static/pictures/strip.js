// The token strip: every token of an episode, coloured by what is known of it. Tokens far from the window cost nothing.

import { h, replace, visible } from "../parts/dom.js";
import { change } from "../parts/route.js";
import { known, largest, shade, SHADINGS, told } from "./shading.js";
import { count } from "../parts/words.js";

const CHUNK = 400;

export function strip(tokens, episode, { shading, at, more }) {
  const { segments } = tokens;
  const columns = { ...tokens.columns, ...more };
  const num = tokens.text_of.length;
  const names = known(columns);
  let name = names.includes(shading) ? shading : names[0] ?? "mask";
  let most = largest(columns, name);
  let here = null;
  const readout = h("div", { class: "readout", "aria-live": "polite" }, h("span", { class: "dim" }, "Point at a token; n and p walk through those that were sampled."));
  const scale = h("span", { class: "scale" });
  const map = h("canvas", { class: "minimap", "aria-hidden": "true" });
  const chunks = [];
  const spans = new Map();
  const body = h("div", { class: "strip" }, segments.filter((one) => one.length).map(section));
  const choose = h("select", { "aria-label": "Colour of tokens", onchange: () => recolour(choose.value) }, names.map((one) => h("option", { value: one, selected: one === name }, SHADINGS[one].label)));

  function section(segment) {
    const turn = episode.turns[segment.turn];
    const title = segment.is_output ? `turn ${segment.turn} sampled ${count(segment.length)} tokens` : `turn ${segment.turn} read ${count(segment.length)} new tokens${turn.num_prompt > segment.length ? ` after ${count(turn.num_prompt - segment.length)} known ones` : ""}`;
    const parts = [];
    for (let first = segment.first; first < segment.first + segment.length; first += CHUNK) {
      const chunk = h("span", { class: "chunk" });
      chunk.bounds = [first, Math.min(first + CHUNK, segment.first + segment.length)];
      chunks.push(chunk);
      parts.push(chunk);
    }
    return h("div", {}, h("div", { class: "turn" }, title, turn.fork && !segment.is_output ? ` · branch: ${turn.fork.replaceAll("_", " ")}` : ""), h("div", {}, parts));
  }

  function paint(chunk) {
    if (chunk.firstChild) return;
    const [first, last] = chunk.bounds;
    const made = document.createDocumentFragment();
    for (let n = first; n < last; n += 1) {
      const span = document.createElement("span");
      span.textContent = visible(tokens.texts[tokens.text_of[n]]);
      span.className = columns.sampled[n] ? "tok sampled" : "tok";
      span.style.background = shade(name, columns, n, most);
      span.dataset.at = n;
      spans.set(n, span);
      made.append(span);
    }
    chunk.append(made);
    chunk.removeAttribute("style");
  }

  const watcher = new IntersectionObserver((seen) => seen.forEach((one) => one.isIntersecting && paint(one.target)), { rootMargin: "600px" });
  // A chunk takes no room before it is painted: the first ones are painted at once, the others as they come near.
  chunks.slice(0, 3).forEach(paint);
  chunks.slice(3).forEach((chunk) => { chunk.style.setProperty("display", "block"); chunk.style.setProperty("min-height", "120px"); watcher.observe(chunk); });

  function recolour(next) {
    name = next;
    most = largest(columns, name);
    choose.value = name;
    change({ colour: name }, { silent: true });
    for (const [n, span] of spans) span.style.background = shade(name, columns, n, most);
    legend();
    drawMap();
  }

  function legend() {
    const shading = SHADINGS[name];
    replace(scale, shading.low, shading.scale.map((colour) => h("i", { style: { background: colour() } })), shading.high);
  }

  function drawMap() {
    const width = Math.max(1, map.clientWidth);
    map.width = width;
    map.height = 22;
    const pen = map.getContext("2d");
    for (let x = 0; x < width; x += 1) {
      let best = null;
      for (let n = Math.floor((x * num) / width); n < Math.max(Math.floor((x * num) / width) + 1, Math.floor(((x + 1) * num) / width)); n += 1) if (columns.sampled[n]) { best = n; break; }
      if (best === null) continue;
      pen.fillStyle = shade(name, columns, best, most);
      pen.fillRect(x, 0, 1, 22);
      pen.fillRect(x, 19, 1, 3);
    }
  }

  function point(n, isFar) {
    spans.get(here)?.classList.remove("at");
    here = n;
    paint(chunks.find((chunk) => n >= chunk.bounds[0] && n < chunk.bounds[1]));
    const span = spans.get(n);
    span.classList.add("at");
    if (isFar) span.scrollIntoView({ block: "center" });
    replace(readout, h("b", {}, JSON.stringify(tokens.texts[tokens.text_of[n]])), h("span", {}, `token ${n}, id ${tokens.ids[n]}`), told(columns, n).map((part) => h("span", {}, part)));
  }

  function walk(step) {
    let n = here === null ? (step > 0 ? -1 : num) : here;
    do n += step; while (n >= 0 && n < num && !columns.sampled[n]);
    if (n >= 0 && n < num) { point(n, true); change({ token: n }, { silent: true }); }
  }

  body.addEventListener("pointerover", (event) => event.target.dataset.at && point(Number(event.target.dataset.at)));
  body.addEventListener("click", (event) => event.target.dataset.at && change({ token: event.target.dataset.at }, { silent: true }));
  map.addEventListener("click", (event) => point(Math.min(num - 1, Math.floor((event.offsetX / map.clientWidth) * num)), true));
  new ResizeObserver(drawMap).observe(map);
  legend();
  return {
    element: h("div", {}, h("div", { class: "tools" }, h("label", {}, "colour", choose), scale, h("span", { class: "dim" }, `${count(num)} tokens, ${count(columns.mask.filter(Boolean).length)} trainable; sampled ones are underlined`)), map, body, readout),
    shown: () => { drawMap(); if (at !== null && at < num) point(at, true); },
    point,
    close: () => watcher.disconnect(),
    keys: { n: ["next sampled token", () => walk(1)], p: ["sampled token before", () => walk(-1)], c: ["next colour of tokens", () => recolour(names[(names.indexOf(name) + 1) % names.length])] },
  };
}
