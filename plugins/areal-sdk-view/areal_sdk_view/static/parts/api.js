// What the page knows comes from here: the server's API, or the answers that an exported page carries.

let carried = null;

/** Takes the answers of an exported page, by address. */
export function carry(answers) {
  carried = answers;
}

export const isExported = () => carried !== null;

export async function get(path, query = {}) {
  if (carried !== null) return fromPage(decodeURIComponent(path), query);
  return answerOf(await fetch(`/api/${path}${asked(query)}`));
}

export async function post(path, body) {
  return answerOf(await fetch(`/api/${path}`, { method: "POST", body: JSON.stringify(body) }));
}

async function answerOf(response) {
  const answer = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
  if (!response.ok) throw new Error(answer.error ?? response.statusText);
  return answer;
}

export const ofRun = (run, what = "", query = {}) => get(`runs/${encodeURIComponent(run)}${what ? `/${what}` : ""}`, query);

/** Server-sent events of this tab; nothing in an exported page. Returns what closes the stream. */
export function listen(run, { onChanged, onView }) {
  if (carried !== null) return () => {};
  const stream = new EventSource(`/api/stream${asked({ run })}`);
  stream.addEventListener("changed", () => onChanged());
  stream.addEventListener("view", (event) => onView(JSON.parse(event.data)));
  return () => stream.close();
}

function values(query) {
  const all = Object.entries(query).flatMap(([name, value]) => (Array.isArray(value) ? value : [value]).map((one) => [name, one]));
  return all.filter(([, value]) => value !== "" && value !== null && value !== undefined);
}

function asked(query) {
  const text = new URLSearchParams(values(query)).toString();
  return text ? `?${text}` : "";
}

function fromPage(path, query) {
  if (path.endsWith("/episodes")) return chosen(carried[path], query);
  const text = values(query).map(([name, value]) => `${name}=${value}`).join("&");
  const answer = carried[text ? `${path}?${text}` : path];
  if (answer === undefined) throw new Error("this page does not hold that: it has the episodes of its tables, and the comparison of all its runs");
  return answer;
}

/** The rows of an exported page, filtered and sorted here, for there is no server: texts and names, no conditions. */
function chosen(all, query) {
  const needle = (query.text ?? "").toLowerCase();
  const by = { best: (e) => -e.reward, worst: (e) => e.reward, surprising: (e) => -Math.abs(e.advantage), longest: (e) => -e.num_tokens, slowest: (e) => -e.duration_s }[query.order];
  const rows = all.rows.filter((e) => (!query.group || e.group === query.group) && (!query.task || e.task_id === query.task)
    && (!needle || `${e.text} ${e.task_id} ${e.id} ${e.error ?? ""}`.toLowerCase().includes(needle)));
  if (by) rows.sort((a, b) => by(a) - by(b));
  const offset = Number(query.offset ?? 0);
  return { ...all, found: rows.length, scanned: needle ? rows.length : null, rows: rows.slice(offset, offset + Number(query.limit ?? 100)) };
}
