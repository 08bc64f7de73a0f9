// The settings of a run, and the versions of its plugins.

import { h, replace } from "../parts/dom.js";

export async function settings(root, { about }) {
  const rows = flat(about.settings);
  const body = h("tbody");
  const find = h("input", { type: "search", placeholder: "Find a setting", "aria-label": "Find a setting", oninput: draw });

  function draw() {
    const needle = find.value.toLowerCase();
    replace(body, rows.filter(([name, value]) => `${name} ${value}`.toLowerCase().includes(needle)).map(([name, value]) => h("tr", {}, h("td", { class: "mono" }, name), h("td", { class: "mono name" }, value))));
  }

  draw();
  replace(root, h("div", { class: "tools" }, find), h("div", { class: "panel scroll" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "setting"), h("th", {}, "value"))), body)),
    about.plugins ? h("div", { class: "panel" }, h("h2", {}, "Plugins"), h("p", { class: "mono" }, Object.entries(about.plugins.installed).map(([name, version]) => `${name} ${version}`).join(", "))) : null);
  return { keys: { "/": ["find a setting", () => find.focus()] } };
}

function flat(value, before = "") {
  return Object.entries(value).flatMap(([key, one]) => (one !== null && typeof one === "object" && !Array.isArray(one) ? flat(one, `${before}${key}.`) : [[`${before}${key}`, JSON.stringify(one)]]));
}
