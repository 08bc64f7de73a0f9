// A line chart on a canvas: series with bands, marks of events, one cursor for all charts of a page, and a drag to zoom.

import { colour, series as seriesColour } from "../parts/colours.js";
import { h, replace } from "../parts/dom.js";
import { number } from "../parts/words.js";

const PAD = { left: 54, right: 10, top: 8, bottom: 20 };
const cursor = new EventTarget();
let cursorX = null;

function point(x) {
  cursorX = x;
  cursor.dispatchEvent(new Event("moved"));
}

/**
 * The element of a chart. `lines`: [{label, colour, points: [[x, y]], band: [[x, low, high]], dots}].
 * `events`: [{x, text, colour}]. `onZoom(from, to)`, or `onZoom()` to see all again.
 */
export function chart({ title, lines, events = [], height = 150, range = null, xLabel = "step", smooth = 0, onZoom, log = false, href = null }) {
  const canvas = h("canvas", { tabindex: 0, role: "img", "aria-label": spoken(title, lines), style: { height: `${height}px` } });
  const legend = h("div", { class: "legend" });
  const element = h("div", { class: "chart" }, title ? h("h2", {}, href ? h("a", { href }, title) : title) : null, canvas, legend);
  const drawn = lines.map((line, n) => ({ ...line, colour: line.colour ?? seriesColour(n), shown: smooth ? smoothed(line.points, smooth) : line.points }));
  const xs = [...new Set(drawn.flatMap((line) => line.points.map((p) => p[0])))].sort((a, b) => a - b);
  let box = null;
  let [dragFrom, dragTo, zoomFrom] = [null, null, null]; // zoomFrom: where Enter was pressed first

  function draw() {
    const ratio = devicePixelRatio || 1;
    const width = canvas.clientWidth;
    if (!width) return;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    box = bounds(drawn, range, width, height, log);
    axes(pen, box, xLabel);
    for (const event of events) mark(pen, box, event);
    pen.save();
    pen.beginPath();
    pen.rect(PAD.left - 3, 0, width - PAD.left - PAD.right + 6, height - PAD.bottom + 2);
    pen.clip();
    for (const line of drawn) band(pen, box, line);
    for (const line of drawn) stroke(pen, box, line, smooth);
    if (dragFrom !== null && dragTo !== null) {
      pen.fillStyle = colour("accent-soft");
      pen.globalAlpha = 0.6;
      pen.fillRect(Math.min(dragFrom, dragTo), PAD.top, Math.abs(dragTo - dragFrom), height - PAD.bottom - PAD.top);
    }
    pen.restore();
    if (cursorX !== null) crosshair(pen, box, drawn);
    say();
  }

  function say() {
    const at = cursorX === null ? null : nearestOf(xs, cursorX);
    const near = at === null ? [] : events.filter((event) => box && Math.abs(box.x(event.x) - box.x(at)) < 5);
    replace(legend,
      at === null ? null : h("span", {}, `${xLabel} `, h("b", {}, number(at, 6))),
      drawn.map((line) => {
        const shown = at === null ? line.points.at(-1) : line.points.find((p) => p[0] === at);
        return h("span", {}, h("i", { style: { background: line.colour } }), `${line.label} `, h("b", {}, shown ? number(shown[1]) : "–"));
      }),
      near.slice(0, 2).map((event) => h("span", { class: "event" }, event.text.slice(0, 140))));
  }

  const toX = (event) => event.clientX - canvas.getBoundingClientRect().left;
  canvas.addEventListener("pointermove", (event) => {
    if (!box) return;
    if (dragFrom !== null) dragTo = toX(event);
    point(box.back(toX(event)));
  });
  canvas.addEventListener("pointerleave", () => { dragFrom = dragTo = null; point(null); });
  canvas.addEventListener("pointerdown", (event) => { dragFrom = onZoom && event.pointerType === "mouse" ? toX(event) : null; });
  canvas.addEventListener("pointerup", (event) => {
    const [from, to] = [dragFrom, toX(event)];
    dragFrom = dragTo = null;
    if (from !== null && Math.abs(to - from) > 8) onZoom(...[box.back(from), box.back(to)].sort((a, b) => a - b));
  });
  canvas.addEventListener("dblclick", () => onZoom?.());
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Enter" && onZoom && cursorX !== null) {
      if (zoomFrom === null) zoomFrom = cursorX;
      else onZoom(...[zoomFrom, cursorX].sort((a, b) => a - b));
    }
    if (!step || !xs.length) return;
    event.preventDefault();
    const at = cursorX === null ? (step > 0 ? -1 : xs.length) : xs.indexOf(nearestOf(xs, cursorX));
    point(xs[Math.min(xs.length - 1, Math.max(0, at + step))]);
  });
  canvas.addEventListener("blur", () => point(null));
  let isWaiting = false;
  const later = () => {
    if (isWaiting) return;
    isWaiting = true;
    requestAnimationFrame(() => { isWaiting = false; if (canvas.isConnected) draw(); });
  };
  cursor.addEventListener("moved", later);
  new ResizeObserver(later).observe(canvas);
  element.forget = () => cursor.removeEventListener("moved", later);
  return element;
}

function spoken(title, lines) {
  const parts = lines.map((line) => line.points.length ? `${line.label} from ${number(line.points[0][1])} to ${number(line.points.at(-1)[1])}` : line.label);
  return `${title}: ${parts.join(", ")}`;
}

/** An exponential mean of the points; `weight` of the past, corrected for its beginning. */
export function smoothed(points, weight) {
  let sum = 0;
  let norm = 0;
  return points.map(([x, y]) => {
    if (y === null) return [x, y];
    sum = weight * sum + (1 - weight) * y;
    norm = weight * norm + (1 - weight);
    return [x, sum / norm];
  });
}

function nearestOf(xs, x) {
  if (!xs.length) return null;
  let low = 0;
  let high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle; else high = middle;
  }
  return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? xs[low] : xs[high];
}

function bounds(lines, range, width, height, log) {
  let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const line of lines) for (const [x] of line.points) { x0 = Math.min(x0, x); x1 = Math.max(x1, x); }
  if (range) [x0, x1] = range;
  for (const line of lines) {
    for (const [x, y] of line.points) if (y !== null && x >= x0 && x <= x1 && (!log || y > 0)) { y0 = Math.min(y0, y); y1 = Math.max(y1, y); }
    for (const [x, low, high] of line.band ?? []) if (x >= x0 && x <= x1) { y0 = Math.min(y0, low); y1 = Math.max(y1, high); }
  }
  if (x0 > x1) [x0, x1] = [0, 1];
  if (y0 > y1) [y0, y1] = [0, 1];
  if (x0 === x1) x1 = x0 + 1;
  if (y0 === y1) { const pad = Math.abs(y0) * 0.1 || 0.5; y0 -= pad; y1 += pad; }
  const f = log ? Math.log10 : (v) => v;
  const [b0, b1] = [f(y0), f(y1)];
  const margin = (b1 - b0) * 0.05;
  const [inner, tall] = [width - PAD.left - PAD.right, height - PAD.top - PAD.bottom];
  return {
    x0, x1, y0, y1, width, height, log,
    x: (x) => PAD.left + ((x - x0) / (x1 - x0)) * inner,
    y: (y) => PAD.top + tall - ((f(y) - b0 + margin) / (b1 - b0 + 2 * margin)) * tall,
    back: (px) => x0 + ((px - PAD.left) / inner) * (x1 - x0),
  };
}

/** Round values between two, about `wanted` of them. */
export function ticks(low, high, wanted) {
  const raw = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((m) => m * power >= raw) * power;
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, n) => (first + n) * step);
}

function axes(pen, box, xLabel) {
  pen.font = "11px system-ui, 'DejaVu Sans', sans-serif";
  pen.fillStyle = colour("dim");
  pen.strokeStyle = colour("line");
  pen.lineWidth = 1;
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  const rows = box.log ? [...new Set([box.y0, Math.sqrt(box.y0 * box.y1), box.y1])] : ticks(box.y0, box.y1, box.height / 45);
  const digits = box.log || rows.length < 2 ? 3 : Math.max(3, Math.ceil(Math.log10(Math.max(...rows.map(Math.abs)) / (rows[1] - rows[0]))) + 1);
  for (const y of rows) {
    const at = Math.round(box.y(y)) + 0.5;
    pen.globalAlpha = 0.6;
    pen.beginPath(); pen.moveTo(PAD.left, at); pen.lineTo(box.width - PAD.right, at); pen.stroke();
    pen.globalAlpha = 1;
    pen.fillText(number(y, digits), PAD.left - 6, at);
  }
  pen.textBaseline = "alphabetic";
  const columns = ticks(box.x0, box.x1, box.width / 80).filter((x) => xLabel !== "step" || Number.isInteger(x));
  for (const x of columns) {
    pen.textAlign = x === columns.at(-1) && box.x(x) > box.width - 30 ? "right" : "center";
    pen.fillText(number(x, 4), box.x(x), box.height - 5);
  }
}

function mark(pen, box, event) {
  if (event.x < box.x0 || event.x > box.x1) return;
  const at = Math.round(box.x(event.x)) + 0.5;
  pen.strokeStyle = event.colour;
  pen.globalAlpha = event.faint ? 0.25 : 0.8;
  pen.setLineDash([2, 3]);
  pen.beginPath(); pen.moveTo(at, PAD.top); pen.lineTo(at, box.height - PAD.bottom); pen.stroke();
  pen.setLineDash([]);
  pen.globalAlpha = 1;
  pen.fillStyle = event.colour;
  pen.beginPath(); pen.moveTo(at - 4, PAD.top - 6); pen.lineTo(at + 4, PAD.top - 6); pen.lineTo(at, PAD.top); pen.fill();
}

function band(pen, box, line) {
  if (!line.band?.length) return;
  pen.fillStyle = line.colour;
  pen.globalAlpha = 0.16;
  pen.beginPath();
  line.band.forEach(([x, , high], n) => (n ? pen.lineTo(box.x(x), box.y(high)) : pen.moveTo(box.x(x), box.y(high))));
  [...line.band].reverse().forEach(([x, low]) => pen.lineTo(box.x(x), box.y(low)));
  pen.fill();
  pen.globalAlpha = 1;
}

function stroke(pen, box, line, smooth) {
  pen.strokeStyle = line.colour;
  pen.lineJoin = "round";
  if (smooth) { pen.globalAlpha = 0.28; pen.lineWidth = 1; path(pen, box, line.points); pen.globalAlpha = 1; }
  pen.lineWidth = 1.8;
  pen.setLineDash(line.dash ?? []);
  path(pen, box, line.shown);
  pen.setLineDash([]);
  if (line.dots || line.points.length < 12) {
    pen.fillStyle = line.colour;
    for (const [x, y] of line.points) if (y !== null) { pen.beginPath(); pen.arc(box.x(x), box.y(y), 2.8, 0, 7); pen.fill(); }
  }
}

function path(pen, box, points) {
  let isDown = false;
  pen.beginPath();
  for (const [x, y] of points) {
    if (y === null || (box.log && y <= 0)) { isDown = false; continue; }
    if (isDown) pen.lineTo(box.x(x), box.y(y)); else pen.moveTo(box.x(x), box.y(y));
    isDown = true;
  }
  pen.stroke();
}

function crosshair(pen, box, lines) {
  if (cursorX < box.x0 || cursorX > box.x1) return;
  const at = box.x(cursorX);
  pen.strokeStyle = colour("dim");
  pen.lineWidth = 1;
  pen.beginPath(); pen.moveTo(at, PAD.top); pen.lineTo(at, box.height - PAD.bottom); pen.stroke();
  for (const line of lines) {
    const x = nearestOf(line.points.map((p) => p[0]), cursorX);
    const found = line.shown.find((p) => p[0] === x);
    if (!found || found[1] === null) continue;
    pen.fillStyle = line.colour;
    pen.beginPath(); pen.arc(box.x(found[0]), box.y(found[1]), 3.5, 0, 7); pen.fill();
  }
}
