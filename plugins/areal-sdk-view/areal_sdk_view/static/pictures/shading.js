// What the colour of a token may say, and the words for one token.

import { diverging, sequential, version } from "../parts/colours.js";
import { number, percent, signed } from "../parts/words.js";

/** Nats: a token that was less likely than exp(-4) has the full colour. */
const SURPRISE = 4;

export const SHADINGS = {
  probability: { label: "probability", of: "logprob", colour: (value) => sequential(value === null ? null : -value / SURPRISE), low: "certain", high: "surprising", scale: [0, 0.35, 1].map((share) => sequential.bind(null, share)) },
  version: { label: "version", of: "version", colour: version, low: "older", high: "newer", scale: [] },
  mask: { label: "trainable or not", of: "mask", colour: (value, at) => (at.sampled ? diverging(value ? 1 : -1, 1.4) : "transparent"), low: "sampled, not trainable", high: "trainable", scale: [() => diverging(-1, 1.4), () => diverging(1, 1.4)] },
  advantage: { label: "advantage", of: "advantage", colour: (value, at, largest) => diverging(value, largest), low: "less likely", high: "more likely", scale: [-1, -0.4, 0.4, 1].map((v) => () => diverging(v, 1)) },
  entropy: { label: "entropy", of: "entropy", colour: (value, at, largest) => sequential(value === null ? null : value / largest, 200), low: "sure", high: "undecided", scale: [0, 0.35, 1].map((share) => () => sequential(share, 200)) },
  change: { label: "change between two weights", of: "change", colour: (value, at, largest) => diverging(value, largest), low: "less likely", high: "more likely", scale: [-1, -0.4, 0.4, 1].map((v) => () => diverging(v, 1)) },
  ratio: { label: "ratio to the sampler", of: "ratio", colour: (value) => diverging(value === null ? null : Math.log(value), 0.4), low: "less likely now", high: "more likely now", scale: [-1, -0.4, 0.4, 1].map((v) => () => diverging(v, 1)) },
};

/** The shadings for which the columns have any value. */
export const known = (columns) => Object.keys(SHADINGS).filter((name) => columns[SHADINGS[name].of]?.some((value) => value !== null));

/** The largest size of a column's values. */
export function largest(columns, name) {
  let most = 0;
  for (const value of columns[SHADINGS[name].of] ?? []) if (value !== null) most = Math.max(most, Math.abs(value));
  return most || 1;
}

/** The colour of token `at`. */
export function shade(name, columns, at, most) {
  const shading = SHADINGS[name];
  return shading.colour(columns[shading.of]?.[at] ?? null, { sampled: columns.sampled[at] }, most);
}

/** Everything that is known of a token, as words. */
export function told(columns, at) {
  const value = (name) => columns[name]?.[at] ?? null;
  if (!value("sampled")) return ["context"];
  const parts = [];
  if (value("logprob") !== null) parts.push(`p ${percent(Math.exp(value("logprob")))}`, `logprob ${number(value("logprob"), 4)}`);
  if (value("version") !== null) parts.push(`version ${value("version")}`);
  parts.push(value("mask") === null ? "sampled" : value("mask") ? "trainable" : "not trainable");
  if (value("advantage") !== null) parts.push(`advantage ${signed(value("advantage"))}`);
  if (value("entropy") !== null) parts.push(`entropy ${number(value("entropy"))}`);
  if (value("ratio") !== null) parts.push(`ratio ${number(value("ratio"), 4)}`);
  if (value("weight") !== null) parts.push(`weight ${number(value("weight"), 4)}`);
  if (value("change") !== null) parts.push(`${percent(Math.exp(value("before")))} → ${percent(Math.exp(value("after")))}`);
  if (value("why")) parts.push(value("why"));
  return parts;
}
