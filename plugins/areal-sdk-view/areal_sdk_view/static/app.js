// The page: from the address to a view, the bar above it, and the keys.

import { carry, isExported, listen } from "./parts/api.js";
import { forget } from "./parts/colours.js";
import { compare } from "./places/compare.js";
import { h, link, replace, say } from "./parts/dom.js";
import { go, href, parse } from "./parts/route.js";
import { forgetRun, run } from "./places/run.js";
import { runs } from "./places/runs.js";

const PAGES = { runs, run, compare };
const REFRESH_MS = 5000; // a change after a quiet time is shown at once
const system = matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = null;
let view = {};
let closeStream = () => {};
let streamed = null;
let lastRefresh = 0;

/** Shows the place that the address names. */
async function show() {
  const { parts, query } = parse();
  const name = parts[0] in PAGES ? parts[0] : "runs";
  const main = document.getElementById("main");
  view.close?.();
  view = {};
  follow(name === "run" ? parts[1] : "");
  crumbs(parts);
  const shown = h("div");
  try {
    const made = await PAGES[name](shown, parts.slice(1), query);
    view = made ?? {};
  } catch (error) {
    replace(shown, h("p", { class: "problem" }, error.message));
  }
  replace(main, shown);
  view.shown?.();
  document.body.dataset.ready = location.hash || "#";
}

/** One stream of events a tab, for the run that it shows. */
function follow(name) {
  if (name === streamed) return;
  closeStream();
  forgetRun(); // nobody told of its changes meanwhile
  streamed = name;
  closeStream = listen(name, { onChanged: changed, onView: open });
}

function changed() {
  const wait = Math.max(0, lastRefresh + REFRESH_MS - Date.now());
  clearTimeout(changed.timer);
  changed.timer = setTimeout(async () => {
    lastRefresh = Date.now();
    if (!document.hidden) await view.refresh?.().catch((error) => say(error.message));
  }, wait);
}

/** Opens the place that an assistant shows. */
function open({ run: name, tab, episode, task, group, ...query }) {
  const parts = ["run", name, ...(episode ? ["episode", episode] : group ? ["group", group] : task ? ["task", task] : [tab ?? "curves"])];
  go(parts, query);
  say("An assistant opened this place");
}

function crumbs(parts) {
  const trail = parts[0] === "run" ? parts.slice(1) : parts.slice(0, 1).filter((part) => part === "compare");
  document.title = [...trail].reverse().concat("areal-sdk view").join(" · ");
  replace(document.getElementById("bar"),
    link("#runs", h("span", { class: "brand" }, "areal-sdk view")),
    h("span", { class: "crumbs" }, trail.length === 0 ? h("span", { class: "dim" }, "runs") : trail.map((part, n) => [
      n ? " / " : "", n === 0 && parts[0] === "run" ? link(href(["run", part]), part) : h("span", { class: "dim" }, part)])),
    h("button", { onclick: theme, "aria-label": "Dark or light" }, "◐"),
    h("button", { onclick: help, "aria-label": "Keys" }, "Keys ", h("kbd", {}, "?")));
}

function theme() {
  chosenTheme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  try { localStorage.setItem("theme", chosenTheme); } catch { /* a page from a file may have no storage */ }
  setTheme();
  show();
}

function setTheme() {
  document.documentElement.dataset.theme = chosenTheme ?? (system.matches ? "dark" : "light");
  forget();
}

const KEYS = {
  "?": ["these keys", help],
  d: ["dark or light", theme],
  r: ["all runs", () => go(["runs"])],
  Escape: ["up, or back to the page", up],
};

function up() {
  if (document.activeElement !== document.body) return document.activeElement.blur();
  const { parts } = parse();
  go(parts.length > 3 ? [parts[0], parts[1], { episode: "episodes", group: "episodes", task: "tasks" }[parts[2]] ?? "curves"] : ["runs"]);
}

function help() {
  const rows = Object.entries({ ...(view.keys ?? {}), ...KEYS });
  const dialog = h("dialog", { onclose: () => dialog.remove() }, h("h2", {}, "Keys"),
    h("dl", {}, rows.map(([key, [text]]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)])),
    h("button", { onclick: () => dialog.close(), autofocus: true }, "Close"));
  document.body.append(dialog);
  dialog.showModal();
}

function pressed(event) {
  const isTyping = event.target.matches?.("input, select, textarea");
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]") || (isTyping && event.key !== "Escape")) return;
  const key = { ...KEYS, ...(view.keys ?? {}) }[event.key];
  if (!key) return;
  event.preventDefault();
  key[1](event);
}

async function begin() {
  try { chosenTheme = localStorage.getItem("theme"); } catch { /* as above */ }
  setTheme();
  const block = document.getElementById("carried");
  if (block) {
    const bytes = Uint8Array.from(atob(block.textContent.trim()), (c) => c.charCodeAt(0));
    const text = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
    carry(text);
    if (!location.hash) history.replaceState(null, "", text.start);
  }
  addEventListener("hashchange", show);
  system.addEventListener("change", () => { if (!chosenTheme) { setTheme(); show(); } });
  addEventListener("keydown", pressed);
  await show();
  if (isExported()) say("An exported page: it holds what was recorded when it was written");
}

begin();
