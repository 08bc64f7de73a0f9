// The horizontal axes of curves: a step, and what had been spent by then.

export const AXES = { step: "step", episodes: "episodes", tokens: "tokens", hours: "hours", cpu: "CPU hours" };

/** The values of an axis, one a step. Episodes and sampled tokens add up; hours are of the clock, CPU hours of main process, engine, trainers and agents. */
export function axis(name, columns) {
  if (!columns.step) return [];
  if (name === "hours") {
    const begin = columns.time[0] - (columns.train_seconds?.[0] ?? 0);
    return columns.time.map((time) => (time - begin) / 3600);
  }
  if (name === "cpu") return columns.step.map((_, n) => (columns.cpu_s[n] === null ? null : columns.cpu_s[n] / 3600));
  if (name === "episodes" || name === "tokens") {
    let sum = 0;
    return columns.step.map((_, n) => {
      const episodes = columns["batch/episodes"]?.[n] ?? 0;
      sum += name === "episodes" ? episodes : episodes * (columns["batch/sampled_tokens"]?.[n] ?? 0);
      return sum;
    });
  }
  return columns.step;
}

/** From a step to its place on the axis; a step between two, or none, goes to the nearest before. */
export function placeOf(steps, xs) {
  return (step) => {
    if (!steps?.length || step <= 0) return 0;
    let low = 0;
    let high = steps.length - 1;
    if (step < steps[0]) return xs[0];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (steps[middle] <= step) low = middle; else high = middle - 1;
    }
    return xs[low];
  };
}
