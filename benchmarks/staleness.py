"""Naive PPO against decoupled PPO on samples that are 0 to 16 versions old.

python benchmarks/staleness.py [--save FILE] [--write]
python benchmarks/staleness.py --redraw

The curves of finished runs are in docs/images/staleness.json: these runs are not repeated, and `--redraw` makes
tables and picture of them again, once all are there.

The comparison of AReaL's paper (arXiv 2505.24298: naive PPO and the decoupled objective over eta) in
miniature. Each run is one process, and every sample of step v comes from the weights of step v - eta
exactly: a harder test than a bound on staleness, below which most samples of a real run stay. The model
(1 layer, 12,000 parameters) starts from random weights. Losses, advantages and optimiser are the
package's own; the arms differ in the objective only, and share the advantages of GRPO.

naive        the preset `naive_ppo`: the trust region's centre is the sampler
recompute    the preset `grpo`: the centre is the policy at the start of the step, by a forward
interpolate  the same with `proximal = "interpolate"`: the centre is estimated without a forward

The game is benchmarks/counting.py. A step trains 4 groups of 16, in 4 minibatches: with a single
minibatch the decoupled trust region never acts.

The score of a run is the mean reward of fresh samples of the current weights, over the last tenth of its
steps. Runs of three times as many steps at eta = 8 tell a slow arm from one that is stuck. The learning
rates are those of 2e-3, 5e-3 and 1e-2 that reached 0.8 at eta = 0 on seed 0, where the arms are the same
algorithm; seed 0 is not among the seeds that are reported.
"""

import argparse
import itertools
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean

from counting import VOCABULARY, evaluate, play
from one_process import Arm, Curve, Player, quiet, save_model, train
from pictures import Line, Panel, draw, save
from seeds import Key, Runs, half_width, load_curves, save_curves, with_interval
from tables import DOCUMENT, table, write_section

ARMS = (
    Arm("naive", "naive_ppo"),
    Arm("recompute", "grpo"),
    Arm("interpolate", "grpo", {"proximal": "interpolate"}),
)
ETAS = (0, 1, 2, 4, 8, 16)
SEEDS = (1, 2, 3, 4, 5)
LEARNING_RATES = (5e-3, 2e-3)
LONG_ETA, LONGER = 8, 3
"""Some runs go on, to tell slow from stuck."""
NUM_MINIBATCHES = 4
STEPS, EVALUATE_EVERY = 60, 3
Case = tuple[float, int, str, int]
"""(learning rate, eta, arm, steps)."""
Curves = dict[Case, list[Curve]]
"""One for each seed."""
PICTURE = DOCUMENT.parent / "images" / "staleness.svg"
CURVES = PICTURE.with_suffix(".json")


def measure(arm: Arm, *, eta: int, learning_rate: float, seed: int, steps: int) -> Curve:
    with tempfile.TemporaryDirectory() as directory:
        model = save_model(Path(directory), vocabulary=VOCABULARY, layers=1, seed=seed)
        return train(
            arm.trainer(model, learning_rate=learning_rate, num_minibatches=NUM_MINIBATCHES),
            Player(model, seed=seed),
            play,
            evaluate,
            steps=steps,
            eta=eta,
            evaluated=lambda step: step % EVALUATE_EVERY == 0 or step > last_tenth(steps),
        )


def last_tenth(steps: int) -> int:
    return steps - steps // 10


def cases() -> Iterator[tuple[Arm, Case]]:
    for learning_rate, eta, arm in itertools.product(LEARNING_RATES, ETAS, ARMS):
        yield arm, (learning_rate, eta, arm.name, STEPS)
    for learning_rate, arm in itertools.product(LEARNING_RATES, ARMS):
        yield arm, (learning_rate, LONG_ETA, arm.name, LONGER * STEPS)


def finals(found: Curves, case: Case) -> list[float]:
    return [curve.final(last_tenth(case[-1])) for curve in found[case]]


def by_series(curves: Mapping[Key, Curve]) -> Curves:
    """The cases all of whose seeds are there."""
    keys = {case: [(*case[:3], seed, case[-1]) for seed in SEEDS] for _, case in cases()}
    return {
        case: [curves[key] for key in of_case]
        for case, of_case in keys.items()
        if all(key in curves for key in of_case)
    }


def row_of(found: Curves, learning_rate: float, eta: int, steps: int) -> tuple[str, ...]:
    """A line of the table; empty cells where runs are missing."""
    cases = [(learning_rate, eta, arm.name, steps) for arm in ARMS]
    label = f"{eta}" if steps == STEPS else f"{eta}, {steps} steps"
    return label, *(with_interval(finals(found, case)) if case in found else "" for case in cases)


def rows_of(found: Curves, learning_rate: float) -> list[tuple[str, ...]]:
    places = [*((eta, STEPS) for eta in ETAS), (LONG_ETA, LONGER * STEPS)]
    return [row_of(found, learning_rate, eta, steps) for eta, steps in places]


def table_of(found: Curves, learning_rate: float) -> str:
    return table(("eta", *(arm.name for arm in ARMS)), rows_of(found, learning_rate))


def line_of(name: str, points: Iterable[Sequence[float]]) -> Line:
    """Each point is the values of all seeds."""
    points = list(points)
    return Line(name, [mean(point) for point in points], [half_width(point) for point in points])


def by_eta(found: Curves, learning_rate: float) -> Panel:
    return Panel(
        f"final reward by eta, rate {learning_rate:g}",
        [str(eta) for eta in ETAS],
        [
            line_of(
                arm.name, (finals(found, (learning_rate, eta, arm.name, STEPS)) for eta in ETAS)
            )
            for arm in ARMS
        ],
    )


def by_step(found: Curves, learning_rate: float) -> Panel:
    curves = {arm.name: found[learning_rate, LONG_ETA, arm.name, LONGER * STEPS] for arm in ARMS}
    # The last tenth has more evaluations: the picture leaves them out.
    evaluated = list(enumerate(curves[ARMS[0].name][0].steps))
    kept = [(index, step) for index, step in evaluated if step % EVALUATE_EVERY == 0]
    return Panel(
        f"reward by step, eta = {LONG_ETA}, rate {learning_rate:g}",
        [str(step) if step % STEPS == 0 else "" for _, step in kept],
        [
            line_of(name, ([curve.scores[index] for curve in seeds] for index, _ in kept))
            for name, seeds in curves.items()
        ],
    )


def picture_of(found: Curves) -> str:
    panels = [
        panel(found, learning_rate)
        for learning_rate in LEARNING_RATES
        for panel in (by_eta, by_step)
    ]
    return draw(f"Mean of {len(SEEDS)} seeds, with 95 % intervals", panels)


def section_of(found: Curves) -> str:
    tables = [
        f"Learning rate {learning_rate:g}:\n\n{table_of(found, learning_rate)}"
        for learning_rate in LEARNING_RATES
    ]
    return (
        "## Naive against decoupled PPO, by staleness\n\n"
        f"`python benchmarks/staleness.py --write`: the final reward after {STEPS} steps, mean over "
        f"{len(SEEDS)} seeds and half the width of its 95 % interval. Every sample of a step is exactly eta "
        "versions old. The docstring of the program describes the arms, the game and the choice of the "
        f"learning rates. [All curves](images/{CURVES.name}); `--redraw` makes tables and picture of them.\n\n"
        + "\n\n".join(tables)
        + f"\n\n![Reward by staleness](images/{PICTURE.stem}.png)"
    )


def write(curves: Mapping[Key, Curve]) -> None:
    found = by_series(curves)
    if missing := len(list(cases())) - len(found):
        raise SystemExit(f"{missing} cases have runs that are missing: leave out --redraw")
    save(picture_of(found), PICTURE)
    write_section("staleness", section_of(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", type=Path, help="a file of finished runs, which are not repeated")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    parser.add_argument("--redraw", action="store_true", help="docs/images/staleness.json, again")
    options = parser.parse_args()
    if options.redraw:
        write(load_curves(CURVES))
        return
    quiet()
    runs = Runs(options.save)
    curves = load_curves(CURVES)
    for arm, case in cases():
        learning_rate, eta, name, steps = case
        for seed in SEEDS:
            key = (learning_rate, eta, name, seed, steps)
            if key in curves:
                continue
            if key not in runs:
                runs[key] = measure(
                    arm, eta=eta, learning_rate=learning_rate, seed=seed, steps=steps
                )
            curves[key] = runs[key]
        of_case = [curves[learning_rate, eta, name, seed, steps] for seed in SEEDS]
        what = f"learning rate {learning_rate:g}, eta {eta}, {steps} steps, {name}"
        took_s = sum(curve.cpu_s[-1] for curve in of_case)
        reached = with_interval([curve.final(last_tenth(steps)) for curve in of_case])
        print(f"{what}: {reached}, {took_s:.0f} CPU-s", flush=True)
    if options.write:
        write(save_curves(curves, CURVES))


if __name__ == "__main__":
    main()
