// The table of episodes: conditions, full text, orders.

import { isExported, ofRun } from "../parts/api.js";
import { colour, reward as rewardColour, rewardRange } from "../parts/colours.js";
import { h, link, replace } from "../parts/dom.js";
import { change, go, href, parse } from "../parts/route.js";
import { rows } from "../parts/table.js";
import { count, number, seconds, signed } from "../parts/words.js";

const ORDERS = { newest: "newest", worst: "worst", best: "best", surprising: "most surprising", longest: "longest", slowest: "slowest" };
const CHIPS = { "training": "split == train", "evaluations": "split != train", "dropped": "dropped != none", "errors": "error", "no success": "success == false" };
const PAGE = 100;

export async function episodes(root, { run, query }) {
  const state = { where: query.get("where") ?? "", text: query.get("text") ?? "", order: query.get("order") ?? "newest", group: query.get("group") ?? "", task: query.get("task") ?? "", failure: query.get("failure") ?? "" };
  let shown = [];
  let last = null;
  let isClosed = false;
  const body = h("tbody");
  const told = h("span", { class: "dim" });
  const problem = h("div");
  const more = h("button", { onclick: () => load(true) }, "More");
  const table = rows(body, { onOpen: (row) => go(["run", run, "episode", row.dataset.id], kept()), onMove: (row, at, num) => { if (at > num - 5 && !more.hidden) load(true); } });
  const where = h("input", { class: "wide mono", type: "search", "aria-label": "Condition", placeholder: "reward < 0.5 and num_turns > 3", value: state.where, onchange: () => set({ where: where.value }) });
  const text = h("input", { class: "wide", type: "search", "aria-label": "Full-text search", placeholder: "full text: in every message", value: state.text, onchange: () => set({ text: text.value }) });

  const kept = () => Object.fromEntries(Object.entries(state).filter(([name, value]) => value && value !== "newest" && name !== "text").concat(state.text ? [["quote", state.text]] : []));

  function set(values) {
    Object.assign(state, values);
    change(values, { silent: true });
    where.value = state.where;
    text.value = state.text;
    return load();
  }

  async function load(isMore = false) {
    const asked = { ...state, limit: PAGE };
    if (isMore) Object.assign(asked, state.text ? { scanned: last.scanned } : { offset: shown.length });
    try {
      last = await ofRun(run, "episodes", asked);
      replace(problem);
    } catch (error) {
      replace(problem, h("p", { class: "problem" }, error.message));
      return;
    }
    shown = isMore ? [...shown, ...last.rows] : last.rows;
    draw();
    const isSearching = state.text && last.scanned < last.found && shown.length < PAGE;
    if (isSearching && !isClosed && parse().query.get("text") === state.text) await load(true);
  }

  function draw() {
    const isWhole = state.text ? last.scanned >= last.found : shown.length >= last.found;
    replace(told, state.text ? `${count(shown.length)} found in ${count(last.scanned)} of ${count(last.found)}${isWhole ? "" : " …"}` : `${count(last.found)} of ${count(last.total)}`);
    more.hidden = isWhole;
    const [low, high] = rewardRange(shown);
    replace(body, shown.map((one) => h("tr", { "data-id": one.id },
      h("td", { class: "num" }, h("span", { class: "bar", style: { width: `${one.reward === null ? 0 : Math.round(3 + (36 * (one.reward - low)) / (high - low))}px`, background: rewardColour(one.reward, low, high) } }), number(one.reward)),
      h("td", { class: "num", style: { color: colour(one.advantage < 0 ? "bad" : "good") } }, one.advantage === null ? "" : signed(one.advantage)),
      h("td", { class: "name" }, link(href(["run", run, "episode", one.id], kept()), one.id)),
      h("td", {}, link(href(["run", run, "task", one.task_id]), one.task_id)),
      h("td", { class: "num" }, one.version ?? ""),
      h("td", {}, fate(one)),
      h("td", { class: "num" }, one.num_turns), h("td", { class: "num" }, count(one.num_tokens)), h("td", { class: "num" }, seconds(one.duration_s)),
      h("td", { class: "text", title: one.error ?? one.text }, one.error ? h("span", { style: { color: colour("bad") } }, one.error) : one.text))));
    if (!shown.length) replace(body, h("tr", {}, h("td", { colspan: 10, class: "dim" }, isWhole ? "No episode is like that." : "Searching …")));
    table.restore();
    document.querySelectorAll(".chip").forEach((chip) => chip.setAttribute("aria-current", String(chip.dataset.where === state.where)));
  }

  replace(root,
    h("div", { class: "tools" }, isExported() ? null : where, text, h("label", {}, "order", h("select", { "aria-label": "Order", onchange: (event) => set({ order: event.target.value }) },
      Object.entries(ORDERS).map(([value, name]) => h("option", { value, selected: state.order === value }, name)))), told),
    isExported() ? null : h("div", { class: "tools" }, h("button", { class: "chip", "data-where": "", onclick: () => set({ where: "", group: "", task: "", failure: "" }) }, "all"),
      Object.entries(CHIPS).map(([name, condition]) => h("button", { class: "chip", "data-where": condition, onclick: () => set({ where: condition }) }, name)),
      state.group ? h("span", { class: "pill" }, `group ${state.group}`) : null, state.task ? h("span", { class: "pill" }, `task ${state.task}`) : null,
      state.failure ? link(href(["run", run, "failures"], { split: state.failure.replace(/:[^:]*$/, "") }), h("span", { class: "pill" }, `failures that end alike ${state.failure}`)) : null),
    problem,
    h("div", { class: "panel scroll" }, h("table", {}, h("thead", {}, h("tr", {},
      ["reward", "advantage"].map((name) => h("th", { class: "num" }, name)), h("th", {}, "episode"), h("th", {}, "task"), h("th", { class: "num" }, "version"), h("th", {}, "fate"),
      ["turns", "tokens", "took"].map((name) => h("th", { class: "num" }, name)), h("th", {}, "last answer"))), body)),
    more);
  await load();
  return {
    keys: { ...table.keys, "/": ["full-text search", () => text.focus()], f: ["condition", () => where.focus()], o: ["next order", () => {
      const names = Object.keys(ORDERS);
      const next = names[(names.indexOf(state.order) + 1) % names.length];
      root.querySelector("select").value = next;
      set({ order: next });
    }], g: ["siblings of the row", () => { const one = shown.find((row) => row.id === table.here()?.dataset.id); if (one?.group) go(["run", run, "group", one.group]); }] },
    close: () => { isClosed = true; },
    refresh: async () => { if (state.order === "newest" && !state.text && shown.length <= PAGE) await load(); },
  };
}

export function fate(one) {
  if (one.step !== null) return `step ${one.step}`;
  if (one.dropped) return h("span", { class: "pill bad" }, one.dropped.replaceAll("_", " "));
  return one.split === "train" ? "not trained" : one.split;
}
