// The tags and the note of a run: shown, and changed in a dialog.

import { isExported, post } from "./api.js";
import { h, link, replace, say } from "./dom.js";
import { href } from "./route.js";

/** Tags as links to the runs that have them, and the note. */
export function noteOf({ tags, note }) {
  return [tags.map((tag) => [" ", link(href(["runs"], { find: tag }), h("span", { class: "pill" }, tag))]), note ? h("p", { class: "note" }, note) : null];
}

/** Asks for tags and a note; `onSaved` is given what the run has then. */
export function editNote(run, known, onSaved) {
  if (isExported()) return say("An exported page keeps no notes");
  const tags = h("input", { type: "text", value: known.tags.join(", "), "aria-label": "Tags, with commas between them", autofocus: true });
  const note = h("textarea", { rows: 6, "aria-label": "Note" });
  note.value = known.note;
  const problem = h("p", { class: "problem", role: "alert" });
  const dialog = h("dialog", { onclose: () => dialog.remove() }, h("h2", {}, "Tags and note"),
    h("p", {}, tags), h("p", {}, note), problem,
    h("button", { onclick: save }, "Save"), " ", h("button", { onclick: () => dialog.close() }, "Cancel"));

  async function save() {
    try {
      onSaved(await post("note", { run, tags: tags.value.split(","), note: note.value }));
      dialog.close();
    } catch (error) {
      replace(problem, error.message);
    }
  }

  document.body.append(dialog);
  dialog.showModal();
}
