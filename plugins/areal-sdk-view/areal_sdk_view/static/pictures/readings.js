// An episode under other weights: two readings of its tokens, and those whose probability changed most.

import { isExported } from "../parts/api.js";
import { copy, h } from "../parts/dom.js";
import { change } from "../parts/route.js";
import { rows } from "../parts/table.js";
import { clipped, percent } from "../parts/words.js";

const MOST = 12;

/** The two readings that the address names, with columns of the tokens; none if there is one reading alone. */
export function pairOf({ readings, pair }, query) {
  if (!pair.length) return { columns: {} };
  const [from, to] = ["from", "to"].map((name, n) => readings.find((one) => one.model === query.get(name)) ?? readings[pair[n]]);
  const columns = { before: from.logprob, after: to.logprob };
  columns.change = from.logprob.map((value, n) => (value === null || to.logprob[n] === null ? null : to.logprob[n] - value));
  return { from, to, columns };
}

/** The choice of two readings, and their largest changes, which keys walk through; `point` shows a token. */
export function readings(tokens, pair, point) {
  if (!pair.to) {
    const command = h("div", { class: "tools" }, h("code", {}, tokens.reread), h("button", { onclick: () => copy(tokens.reread, "The command") }, "Copy reread command"));
    return { element: isExported() ? null : h("div", {}, h("p", { class: "dim" }, "How likely is each token under the weights of two checkpoints? This command reads the episode again:"), command), keys: {} };
  }
  const { columns } = pair;
  const places = columns.change.map((value, n) => [n, value]).filter(([, value]) => value).sort((a, b) => Math.abs(b[1]) - Math.abs(a[1])).slice(0, MOST);
  const said = (one, n) => (one.likeliest[n] ?? []).slice(0, 3).map(([text, value]) => `${JSON.stringify(clipped(text, 16))} ${percent(Math.exp(value))}`).join(", ");
  const body = h("tbody", {}, places.map(([n]) => h("tr", { "data-at": n },
    h("td", {}, h("button", { class: "small mono", onclick: () => point(n, true) }, JSON.stringify(tokens.texts[tokens.text_of[n]]))), h("td", { class: "num" }, tokens.segments.findLast((one) => one.first <= n && one.length).turn), h("td", { class: "num" }, percent(Math.exp(columns.before[n]))),
    h("td", { class: "num" }, percent(Math.exp(columns.after[n]))), h("td", { class: "mono common" }, said(pair.from, n)), h("td", { class: "mono common" }, said(pair.to, n)))));
  const show = (row) => point(Number(row.dataset.at), true);
  const table = rows(body, { onOpen: show, onMove: show });
  const choice = (name, of) => h("label", {}, name, h("select", { "aria-label": `Weights ${name}`, onchange: (event) => change({ [name]: event.target.value }) }, tokens.readings.map((one) => h("option", { value: one.model, selected: one === of }, one.model))));
  const names = ["turn", pair.from.model, pair.to.model].map((name) => h("th", { class: "num" }, name));
  const element = h("div", {}, h("div", { class: "tools" }, choice("from", pair.from), choice("to", pair.to), h("span", { class: "dim" }, places.length ? "the tokens that changed most; j and k walk through them" : "no token changed")),
    h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "token"), names, [pair.from, pair.to].map((one) => h("th", {}, `likeliest ${one.model}`)))), body)));
  return { element, keys: { ...table.keys, j: ["next token that changed", table.keys.j[1]], k: ["token before that changed", table.keys.k[1]] } };
}
