// The time of an episode: for each turn the wait for a slot, prefill and decoding; between turns the agent and its tools.

import { colour } from "../parts/colours.js";
import { h, s } from "../parts/dom.js";
import { seconds } from "../parts/words.js";

const [WIDTH, ROW, LEFT] = [720, 18, 46];
const MAX_TURNS = 60;

export function timeline(turns, total) {
  const end = Math.max(total, ...turns.map((turn) => turn.began_s + turn.duration_s), 1e-6);
  if (!turns.length || !turns.some((turn) => turn.duration_s)) return null;
  const x = (at) => LEFT + (at / end) * (WIDTH - LEFT - 4);
  const bar = (at, length, name, y, height = 12) => length <= 0 ? null
    : s("rect", { x: x(at), y, width: Math.max(0.8, x(length) - LEFT), height, fill: colour(name) });
  const shown = turns.slice(0, MAX_TURNS);
  const rows = shown.map((turn, n) => {
    const [y, first] = [n * ROW + 4, Math.min(turn.first_token_s, turn.duration_s)], queue = Math.min(turn.queued_s, first);
    const before = n === 0 ? 0 : turns[n - 1].began_s + turns[n - 1].duration_s, idle = turn.began_s - before;
    return s("g", {}, s("title", {}, `turn ${n}: agent ${seconds(Math.max(0, idle))}, queue ${seconds(queue)}, first token after ${seconds(first)}, decoding ${seconds(turn.duration_s - first)}, ${turn.num_cached} of ${turn.num_prompt} prompt tokens cached`),
      s("text", { x: 0, y: y + 11, class: "dim" }, `turn ${n}`),
      bar(before, idle, "series-3", y + 5, 3), bar(turn.began_s, queue, "series-4", y + 3, 6),
      bar(turn.began_s + queue, first - queue, "series-5", y), bar(turn.began_s + first, turn.duration_s - first, "series-1", y));
  });
  const key = (name, text) => h("span", { class: "scale" }, h("i", { style: { background: colour(name) } }), text);
  return h("div", {}, s("svg", { viewBox: `0 0 ${WIDTH} ${shown.length * ROW + 6}`, width: "100%", role: "img", "aria-label": `time of ${turns.length} turns in ${seconds(end)}` }, rows),
    h("div", { class: "facts" }, ...(turns.some((turn) => turn.queued_s) ? [key("series-4", "queue"), key("series-5", "prefill")] : [key("series-5", "queue and prefill")]), key("series-1", "decoding"), key("series-3", "agent, tools, environment"), h("span", {}, `all ${seconds(end)}`), turns.length > MAX_TURNS ? h("span", {}, `${turns.length - MAX_TURNS} more turns`) : null));
}
