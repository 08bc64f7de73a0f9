// The messages of an episode: thoughts, calls, results; long texts in parts; a quote marked.

import { isExported, ofRun } from "../parts/api.js";
import { copy, h, replace } from "../parts/dom.js";
import { count, number, signed } from "../parts/words.js";

export function conversation(run, episode, quote, named = null) {
  let marked = null;
  const messages = episode.messages.map((message, at) => {
    const turn = episode.turns[message.turn];
    const element = h("div", { class: `message ${message.role}` },
      h("div", { class: "role" }, h("b", {}, message.role), message.name ? h("span", {}, message.name) : null, message.is_answer ? facts(turn, message.turn) : null,
        message.is_answer && !isExported() ? h("button", { class: "small", title: "Copy the request of this turn as a curl command", onclick: () => copyTurn(run, episode.summary.id, message.turn) }, "curl") : null),
      message.blocks.length ? message.blocks.map((block, n) => shown(run, episode, at, n, block, quote)) : h("div", { class: "block dim" }, "(nothing)"));
    const isNamed = quote ? element.querySelector("mark") : message.is_answer && String(message.turn) === named;
    if (isNamed && !marked) marked = element;
    return element;
  });
  marked?.classList.add("here");
  return { element: h("div", {}, messages), marked };
}

async function copyTurn(run, id, turn) {
  await copy((await ofRun(run, "copy", { id, as: "curl", turn })).text, `The request of turn ${turn}`);
}

function facts(turn, index) {
  const parts = [`turn ${index}`, `${count(turn.num_prompt)} + ${count(turn.num_output)} tokens`];
  if (turn.reward !== null) parts.push(`reward ${number(turn.reward)}`);
  if (turn.advantage !== null) parts.push(`advantage ${signed(turn.advantage)}`);
  if (turn.finish_reason !== "stop") parts.push(turn.finish_reason);
  if (turn.excluded) parts.push(`not trained: ${turn.excluded.replaceAll("_", " ")}`);
  const forked = turn.fork ? h("span", { class: "pill bad" }, `branch: ${turn.fork.replaceAll("_", " ")}`) : null;
  return [h("span", {}, parts.join(" · ")), forked];
}

function shown(run, episode, at, number, block, quote) {
  const text = h("span", {}, withQuote(block.text, quote));
  const element = h("div", { class: `block ${block.kind}` }, block.kind === "call" ? h("b", {}, `→ ${block.name} `) : null, text);
  if (block.kind === "thought") return h("details", { open: block.text.length < 2000 || Boolean(element.querySelector("mark")) }, h("summary", {}, `thought, ${count(block.length ?? block.text.length)} characters`), element);
  if (!block.length) return element;
  let start = block.text.length;
  const button = h("button", { onclick: async () => {
    const part = await ofRun(run, "text", { id: episode.summary.id, message: at, block: number, start });
    text.append(...withQuote(part.text, quote).map((one) => (one instanceof Node ? one : document.createTextNode(one))));
    start += part.text.length;
    if (start >= block.length) button.remove(); else label();
  } });
  const label = () => replace(button, `more: ${count(block.length - start)} characters are left`);
  label();
  return h("div", {}, element, button);
}

/** The text as pieces, with every place of the quote marked. */
function withQuote(text, quote) {
  if (!quote) return [text];
  const pieces = [];
  const [low, needle] = [text.toLowerCase(), quote.toLowerCase()];
  let from = 0;
  for (let at = low.indexOf(needle); at >= 0 && pieces.length < 400; at = low.indexOf(needle, from)) {
    pieces.push(text.slice(from, at), h("mark", {}, text.slice(at, at + quote.length)));
    from = at + quote.length;
  }
  return [...pieces, text.slice(from)];
}
