// Colours that people with deuteranopia tell apart: blue against orange, never green against red.

const cache = new Map();

/** A colour of the style sheet, in the theme of now. */
export function colour(name) {
  if (!cache.has(name)) cache.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  return cache.get(name);
}

export function forget() {
  cache.clear();
}

export const NUM_SERIES = 8;
export const series = (number) => colour(`series-${(number % NUM_SERIES) + 1}`);

const isDark = () => colour("is-dark") === "1";

function mixed(hue, saturation, strength) {
  const alpha = 0.06 + 0.62 * Math.min(1, Math.max(0, strength));
  return `hsl(${hue} ${saturation}% ${isDark() ? 42 : 50}% / ${alpha.toFixed(3)})`;
}

/** Blue above zero, orange below; paler near zero. */
export const diverging = (value, scale) => (value === null || value === undefined || !scale ? "transparent" : mixed(value > 0 ? 208 : 28, 92, Math.abs(value) / scale));

/** Darker, the larger `share` (0 to 1). */
export const sequential = (share, hue = 275) => (share === null || share === undefined ? "transparent" : mixed(hue, 60, share));

/** One colour a version, neighbours far apart, the order still to be seen. */
export const version = (value) => (value === null || value === undefined ? "transparent" : mixed([208, 40, 275, 12][value % 4], 70, 0.35 + 0.5 * ((value % 8) / 8)));

/** The lowest and the highest reward of rows with rewards, 0 and 1 at least. */
export function rewardRange(rows) {
  const known = rows.map((one) => one.reward).filter((value) => value !== null);
  return [Math.min(0, ...known), Math.max(1, ...known)];
}

/** The colour of a reward between the lowest and the highest. */
export function reward(value, low, high) {
  if (value === null || value === undefined) return "transparent";
  const middle = (low + high) / 2;
  return diverging(value - middle, (high - low) / 2 || 1);
}
