// Every state of the page is its address: `#run/NAME/episodes?where=reward+%3C+0.5`.

/** A part of an address; as it stands if it is no coded text. */
const decoded = (part) => { try { return decodeURIComponent(part); } catch { return part; } };

/** The address as parts and a query. */
export function parse(hash = location.hash) {
  const [path, query = ""] = hash.replace(/^#/, "").split("?");
  return { parts: path.split("/").filter(Boolean).map(decoded), query: new URLSearchParams(query) };
}

/** The address of parts and of the query's values that are not empty. */
export function href(parts, query = {}) {
  const values = query instanceof URLSearchParams ? [...query] : Object.entries(query).flatMap(
    ([name, value]) => (Array.isArray(value) ? value : [value]).map((one) => [name, one]));
  const kept = new URLSearchParams(values.filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false));
  const text = kept.toString();
  return `#${parts.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

export function go(parts, query) {
  location.hash = href(parts, query);
}

/** The same place with other values in its query. `silent`: the page shows them already. */
export function change(values, { silent = false } = {}) {
  const { parts, query } = parse();
  for (const [name, value] of Object.entries(values)) {
    if (value === "" || value === null || value === undefined || value === false) query.delete(name);
    else query.set(name, value);
  }
  const now = href(parts, query);
  if (silent) history.replaceState(null, "", now);
  else location.hash = now;
}
