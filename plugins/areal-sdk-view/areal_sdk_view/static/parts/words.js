// Numbers and times as people read them.

export function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e9) return `${(value / 1e9).toPrecision(digits)} G`;
  if (size >= 1e6) return `${(value / 1e6).toPrecision(digits)} M`;
  if (size >= 1e4 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  if (size < 1e-3) return value.toExponential(digits - 2);
  return String(Number(value.toPrecision(digits)));
}

export const count = (value) => (value ?? 0).toLocaleString("en");

/** `1 step`, `2,000 steps`. */
export const counted = (value, word) => `${count(value)} ${word}${value === 1 ? "" : "s"}`;

export const signed = (value) => (value === null || value === undefined ? "–" : `${value > 0 ? "+" : ""}${number(value)}`);

export const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(value % 1 !== 0 && (value > 0.995 || value < 0.0995) ? 1 : 0)} %`);

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(1)} s`;
  const minutes = Math.floor(Math.round(value) / 60);
  return minutes < 60 ? `${minutes} min ${Math.round(value) % 60} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function ago(unix) {
  const past = Date.now() / 1000 - unix;
  if (past < 60) return "now";
  if (past < 3600) return `${Math.floor(past / 60)} min ago`;
  if (past < 86400) return `${Math.floor(past / 3600)} h ago`;
  if (past < 30 * 86400) return `${Math.floor(past / 86400)} d ago`;
  return new Date(unix * 1000).toISOString().slice(0, 10);
}

export const moment = (unix) => new Date(unix * 1000).toLocaleString();

export const clipped = (text, length = 120) => (text.length > length ? `${text.slice(0, length)}…` : text);
