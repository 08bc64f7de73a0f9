// Rows that keys walk through: j and k move, Enter opens.

/** `keys` and helpers for the rows of a table's body. A click on a row, but not on what is in it, opens it too. */
export function rows(body, { onOpen, onMove }) {
  let at = -1;

  const all = () => [...body.children];

  function move(step) {
    const list = all();
    if (!list.length) return;
    list[at]?.classList.remove("here");
    at = Math.min(list.length - 1, Math.max(0, at + step));
    list[at].classList.add("here");
    list[at].scrollIntoView({ block: "nearest" });
    onMove?.(list[at], at, list.length);
  }

  body.addEventListener("click", (event) => {
    if (event.target.closest("a, button, input")) return;
    const row = event.target.closest("tr");
    if (row) onOpen(row);
  });
  return {
    here: () => all()[at],
    restore: () => all()[at]?.classList.add("here"),
    keys: {
      j: ["next row", () => move(1)],
      k: ["row before", () => move(-1)],
      Enter: ["open the row", () => all()[at] && onOpen(all()[at])],
    },
  };
}
