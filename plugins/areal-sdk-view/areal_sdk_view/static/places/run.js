// One run: what it is, how it stands, and its tabs.

import { isExported, ofRun } from "../parts/api.js";
import { curves } from "./curves.js";
import { h, replace } from "../parts/dom.js";
import { episode } from "./episode.js";
import { episodes } from "./episodes.js";
import { failures } from "./failures.js";
import { lanes } from "./lanes.js";
import { logs } from "./logs.js";
import { editNote, noteOf } from "../parts/note.js";
import { go, href } from "../parts/route.js";
import { settings } from "./settings.js";
import { siblings } from "./siblings.js";
import { task, tasks } from "./tasks.js";
import { why } from "./why.js";
import { ago, count, moment, number } from "../parts/words.js";

const TABS = { curves, episodes, tasks, failures, lanes, settings, why, logs };
const PLACES = { ...TABS, episode, group: siblings, task };
const TAB_OF = { episode: "episodes", group: "episodes", task: "tasks" };

/** The tabs of a run. An exported page has no logs. */
const tabsOf = () => Object.keys(TABS).filter((tab) => tab !== "logs" || !isExported());

/** The run of the last place. It changes when its files do, and then the stream says so. */
let known = null;

export function forgetRun() {
  known = null;
}

export async function run(root, [name, asked, ...rest], query) {
  if (asked && !(asked in PLACES)) throw new Error(`a run has no ${asked}; it has ${Object.keys(TABS).join(", ")}`);
  if (known?.name !== name) known = { name, about: await ofRun(name) };
  let { about } = known;
  const place = asked ?? (about.overview.steps || about.is_running || !about.num_episodes ? "curves" : "episodes");
  const head = h("div");
  const body = h("div");
  replace(root, head, body);

  function draw() {
    const { overview, verdict } = about;
    const held = overview.held_out;
    const tabs = h("nav", { class: "tabs", "aria-label": "Views of the run" }, tabsOf().map((tab, n) =>
      h("a", { href: href(["run", name, tab]), "aria-current": (TAB_OF[place] ?? place) === tab ? "page" : null }, tab, h("kbd", {}, n + 1))));
    if (place in TAB_OF) return replace(head, tabs); // the bar above names the run
    return replace(head,
      h("div", { class: "head" }, h("h1", {}, name), h("span", { class: `pill ${overview.state}` }, overview.state), noteOf({ ...about.note, note: "" }),
        isExported() ? null : h("button", { onclick: edit }, about.note.note || about.note.tags.length ? "Edit tags and note" : "Add tags or a note")),
      about.note.note ? h("p", { class: "note" }, about.note.note) : null,
      h("div", { class: "facts" },
        fact("agent", overview.agent), fact("model", overview.model), fact("algorithm", overview.algorithm),
        fact("steps", overview.total_steps ? `${count(overview.steps)} / ${count(overview.total_steps)}` : count(overview.steps)),
        fact("episodes", count(about.num_episodes)),
        about.num_unreadable ? fact("lines left out, as damaged or of a newer version", count(about.num_unreadable)) : null,
        held ? fact(`held-out ${held.measure}`, `${held.before === null ? "·" : number(held.before)} → ${held.after === null ? "·" : number(held.after)}`) : null,
        h("span", { title: moment(overview.began) }, `began ${ago(overview.began)}`)),
      verdict ? h("p", { class: "verdict" }, verdict.missing ? h("span", { class: "pill bad" }, verdict.missing) : null, verdict.missing ? " " : null, verdict.figures, verdict.cure ? h("b", {}, ` → ${verdict.cure}`) : null) : null,
      overview.problem ? h("p", { class: "problem" }, overview.problem) : null,
      tabs);
  }

  function edit() {
    editNote(name, about.note, (note) => { about.note = note; draw(); });
  }

  draw();
  const inner = (await PLACES[place](body, { run: name, about, rest, query })) ?? {};
  const keys = Object.fromEntries(tabsOf().map((tab, n) => [String(n + 1), [tab, () => go(["run", name, tab])]]));
  return {
    keys: { ...inner.keys, ...keys, m: ["tags and note", edit] },
    close: inner.close,
    shown: inner.shown,
    refresh: async () => {
      if (isExported()) return;
      about = await ofRun(name);
      known = { name, about };
      draw();
      await inner.refresh?.(about);
    },
  };
}

const fact = (name, value) => h("span", {}, `${name} `, h("b", {}, value));
