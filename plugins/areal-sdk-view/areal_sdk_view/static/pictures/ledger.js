// The ledger as a picture: started = running + buffered + trained + dropped, by reason. A part links to its episodes.

import { h, s } from "../parts/dom.js";
import { colour } from "../parts/colours.js";
import { href } from "../parts/route.js";
import { count, percent } from "../parts/words.js";

const [WIDTH, BAR, GAP, LEAST] = [520, 16, 26, 3];
const HEIGHT = 190;

export function ledger(run, books, isRunning) {
  if (!books?.dropped) return h("p", { class: "dim" }, "No books yet.");
  const dropped = Object.entries(books.dropped).filter(([, num]) => num).sort((a, b) => b[1] - a[1]);
  const parts = [
    { name: "trained", num: books.trained, fill: "series-1", where: "step > 0" },
    { name: isRunning ? "running" : "cut off with the run", num: books.running, fill: "series-3" },
    { name: "buffered", num: books.buffered, fill: "series-5" },
    ...dropped.map(([reason, num]) => ({ name: `dropped: ${reason.replaceAll("_", " ")}`, num, fill: "series-2", where: `dropped == ${reason}` })),
  ].filter((part) => part.num);
  const tall = HEIGHT - 10;
  const total = Math.max(1, books.started);
  const heights = parts.map((part) => Math.max(LEAST, (part.num / total) * tall));
  const height = Math.max(HEIGHT, heights.reduce((sum, one) => sum + Math.max(one, GAP), 10));
  let from = 5;
  let to = 5;
  const drawn = parts.map((part, n) => {
    const size = heights[n];
    const left = Math.max(1, (part.num / total) * tall);
    const [a, b] = [from, to];
    from += left;
    to += Math.max(size, GAP);
    const middle = (BAR + WIDTH * 0.52) / 2;
    const right = WIDTH * 0.52;
    const flow = `M${BAR},${a} C${middle},${a} ${middle},${b} ${right},${b} L${right},${b + size} C${middle},${b + size} ${middle},${a + left} ${BAR},${a + left} Z`;
    const picture = [
      s("path", { d: flow, fill: colour(part.fill), opacity: 0.28 }),
      s("rect", { x: right, y: b, width: BAR, height: size, fill: colour(part.fill), rx: 2 }),
      s("text", { x: right + BAR + 8, y: b + Math.min(size / 2, GAP) + 4 }, `${part.name} `, s("tspan", { "font-weight": 600 }, count(part.num)), ` ${percent(part.num / total)}`)];
    const what = `${count(part.num)} episodes ${part.name}`;
    return part.where
      ? s("a", { href: href(["run", run, "episodes"], { where: part.where }) }, s("title", {}, `${what}: list them`), picture)
      : s("g", {}, s("title", {}, what), picture);
  });
  return h("div", {},
    s("svg", { viewBox: `0 0 ${WIDTH} ${height}`, width: "100%", role: "group", "aria-label": `${count(books.started)} episodes started; ${parts.map((part) => `${part.name} ${count(part.num)}`).join(", ")}` },
      s("rect", { x: 0, y: 5, width: BAR, height: tall, fill: colour("dim"), rx: 2 }), drawn),
    h("p", { class: "dim" }, `started ${count(books.started)} = ${parts.map((part) => `${part.name} ${count(part.num)}`).join(" + ")}`));
}
