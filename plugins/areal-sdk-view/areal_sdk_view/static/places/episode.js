// One episode: verdict, siblings, conversation, times, and its tokens.

import { isExported, ofRun } from "../parts/api.js";
import { colour, reward as rewardColour, rewardRange } from "../parts/colours.js";
import { conversation } from "../pictures/conversation.js";
import { copy, h, link, replace, say } from "../parts/dom.js";
import { fate } from "./episodes.js";
import { go, href } from "../parts/route.js";
import { pairOf, readings } from "../pictures/readings.js";
import { strip } from "../pictures/strip.js";
import { timeline } from "../pictures/timeline.js";
import { moment, number, seconds, signed } from "../parts/words.js";

const FORMS = { jsonl: "JSONL", atif: "ATIF" };

async function copyAs(run, id, form, name) {
  try { await copy((await ofRun(run, "copy", { id, as: form })).text, name); } catch (error) { say(error.message); }
}

export async function episode(root, { run, about, rest, query }) {
  const id = rest.join("/");
  const one = await ofRun(run, "episode", { id });
  const { summary } = one;
  const talk = conversation(run, one, query.get("quote"), query.get("turn"));
  const known = await ofRun(run, "tokens", { id });
  const pair = pairOf(known, query);
  const tokens = strip(known, one, { shading: query.get("colour") ?? "probability", at: query.get("token") === null ? null : Number(query.get("token")), more: pair.columns });
  const changed = readings(known, pair, tokens.point);
  const weights = wrapped("Under other weights", summary.num_tokens ? changed.element : null);
  const order = [...one.siblings].sort((a, b) => a.id.localeCompare(b.id, "en", { numeric: true }));
  const place = order.findIndex((other) => other.id === id);
  const toSibling = (step) => () => order.length && go(["run", run, "episode", order[(place + step + order.length) % order.length].id]);

  replace(root,
    h("div", { class: "head" }, h("h1", {}, id), verdict(one), h("span", { class: "dim" }, fate(summary)), summary.advantage === null ? null : h("span", {}, "advantage ", h("b", { style: { color: colour(summary.advantage < 0 ? "bad" : "good") } }, signed(summary.advantage)))),
    h("div", { class: "facts" },
      h("span", {}, "task ", link(href(["run", run, "task", summary.task_id]), summary.task_id)),
      summary.group ? h("span", {}, "group ", link(href(["run", run, "group", summary.group]), summary.group)) : null,
      h("span", {}, `version ${summary.version ?? "–"}`), h("span", {}, `${summary.num_turns} turns`), h("span", {}, `${summary.num_tokens} tokens sampled`), h("span", {}, seconds(summary.duration_s)),
      one.truncated ? h("span", { class: "pill bad" }, "truncated") : null, one.attempt ? h("span", {}, `attempt ${one.attempt}`) : null,
      Object.entries(one.outcome.metrics).map(([name, value]) => h("span", {}, `${name} `, h("b", {}, number(value)))), h("span", {}, moment(summary.time))),
    others(run, order, id),
    one.outcome.message ? h("p", { class: "problem" }, one.outcome.message, one.outcome.trace ? h("details", {}, h("summary", {}, "traceback"), h("pre", { class: "block" }, one.outcome.trace)) : null) : null,
    h("div", { class: "tools" },
      isExported() ? null : Object.entries(FORMS).map(([form, name]) => h("button", { onclick: () => copyAs(run, id, form, name) }, `Copy ${name}`)),
      h("button", { onclick: () => copy(`areal-sdk inspect ${quoted(about.overview.path)} --episode ${quoted(id)}`, "The command") }, "Copy command"),
      isExported() ? null : h("button", { onclick: () => copy(location.href, "The address") }, "Copy address")),
    pair.to ? weights : null,
    h("div", { class: "two" },
      h("section", { class: "panel", "aria-label": "Conversation" }, h("h2", {}, "Conversation"), talk.element),
      h("div", {}, h("section", { class: "panel", "aria-label": "Tokens" }, h("h2", {}, "Tokens"), known.problem ? h("p", { class: "problem" }, known.problem) : null, tokens.element),
        pair.to ? null : weights,
        wrapped("Time", timeline(one.turns, summary.duration_s)),
        wrapped("Task", one.task.data.text === "{}" ? null : h("div", { class: "block data" }, one.task.data.text)))));
  return {
    keys: { "[": ["sibling before", toSibling(-1)], "]": ["next sibling", toSibling(1)], g: ["siblings side by side", () => summary.group && go(["run", run, "group", summary.group])], t: ["the task through training", () => go(["run", run, "task", summary.task_id])], ...tokens.keys, ...changed.keys },
    shown: () => { tokens.shown(); talk.marked?.scrollIntoView({ block: "center" }); },
    close: tokens.close,
  };
}

export function verdict(one) {
  const { outcome } = one;
  if (outcome.reward === null) return h("span", { class: "pill bad" }, outcome.error ? `${outcome.error} error` : outcome.kind);
  const success = outcome.success === null ? "" : outcome.success ? ", success" : ", no success";
  return h("span", {}, "reward ", h("b", {}, number(outcome.reward)), success);
}

/** The attempts of the group as a row of rewards. */
function others(run, order, id) {
  if (order.length < 2) return null;
  const [low, high] = rewardRange(order);
  return h("div", { class: "tools", role: "navigation", "aria-label": "Siblings" }, h("span", { class: "dim" }, "siblings"),
    order.slice(0, 64).map((one) => h("a", { class: "chip pill", href: href(["run", run, "episode", one.id]), "aria-current": String(one.id === id), style: { background: rewardColour(one.reward, low, high), color: colour("ink") }, title: one.id }, one.reward === null ? "–" : number(one.reward), one.advantage === null ? "" : ` (${signed(one.advantage)})`)));
}

/** A word of a shell: ids are the callers' own, and must not become commands. */
const quoted = (word) => (/^[\w./:@%+=,-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

const wrapped = (title, content) => (content ? h("section", { class: "panel", "aria-label": title }, h("h2", {}, title), content) : null);
