"""Naive PPO against decoupled PPO on samples that are 0 to 16 versions old.

python benchmarks/staleness.py [--steps 60] [--save FILE] [--write]

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
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import mean

from counting import VOCABULARY, evaluate, play
from one_process import Arm, Curve, Player, quiet, save_model, train
from pictures import Line, Panel, draw, save
from seeds import Runs, half_width, with_interval
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
EVALUATE_EVERY = 3
Case = tuple[float, int, str, int]
"""(learning rate, eta, arm, steps)."""
Curves = dict[Case, list[Curve]]
"""One for each seed."""
PICTURE = DOCUMENT.parent / "images" / "staleness.svg"


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


def cases(steps: int) -> Iterator[tuple[Arm, Case]]:
    for learning_rate, eta, arm in itertools.product(LEARNING_RATES, ETAS, ARMS):
        yield arm, (learning_rate, eta, arm.name, steps)
    for learning_rate, arm in itertools.product(LEARNING_RATES, ARMS):
        yield arm, (learning_rate, LONG_ETA, arm.name, LONGER * steps)


def finals(found: Curves, case: Case) -> list[float]:
    return [curve.final(last_tenth(case[-1])) for curve in found[case]]


def table_of(found: Curves, learning_rate: float, *, steps: int) -> str:
    def cells(eta: int, steps: int) -> list[str]:
        names = [arm.name for arm in ARMS]
        return [with_interval(finals(found, (learning_rate, eta, name, steps))) for name in names]

    long = LONGER * steps
    rows = [(f"{eta}", *cells(eta, steps)) for eta in ETAS]
    rows.append((f"{LONG_ETA}, {long} steps", *cells(LONG_ETA, long)))
    return table(("eta", *(arm.name for arm in ARMS)), rows)


def line_of(name: str, points: Iterable[Sequence[float]]) -> Line:
    """Each point is the values of all seeds."""
    points = list(points)
    return Line(name, [mean(point) for point in points], [half_width(point) for point in points])


def by_eta(found: Curves, learning_rate: float, *, steps: int) -> Panel:
    return Panel(
        f"final reward by eta, rate {learning_rate:g}",
        [str(eta) for eta in ETAS],
        [
            line_of(
                arm.name, (finals(found, (learning_rate, eta, arm.name, steps)) for eta in ETAS)
            )
            for arm in ARMS
        ],
    )


def by_step(found: Curves, learning_rate: float, *, steps: int) -> Panel:
    curves = {arm.name: found[learning_rate, LONG_ETA, arm.name, LONGER * steps] for arm in ARMS}
    # The last tenth has more evaluations: the picture leaves them out.
    evaluated = list(enumerate(curves[ARMS[0].name][0].steps))
    kept = [(index, step) for index, step in evaluated if step % EVALUATE_EVERY == 0]
    return Panel(
        f"reward by step, eta = {LONG_ETA}, rate {learning_rate:g}",
        [str(step) if step % steps == 0 else "" for _, step in kept],
        [
            line_of(name, ([curve.scores[index] for curve in seeds] for index, _ in kept))
            for name, seeds in curves.items()
        ],
    )


def picture_of(found: Curves, *, steps: int) -> str:
    panels = [
        panel(found, learning_rate, steps=steps)
        for learning_rate in LEARNING_RATES
        for panel in (by_eta, by_step)
    ]
    return draw(f"Mean of {len(SEEDS)} seeds, with 95 % intervals", panels)


def write(found: Curves, *, steps: int) -> None:
    save(picture_of(found, steps=steps), PICTURE)
    tables = [
        f"Learning rate {learning_rate:g}:\n\n{table_of(found, learning_rate, steps=steps)}"
        for learning_rate in LEARNING_RATES
    ]
    write_section(
        "staleness",
        "## Naive against decoupled PPO, by staleness\n\n"
        f"`python benchmarks/staleness.py --steps {steps} --write`: the final reward after {steps} "
        f"steps, mean over {len(SEEDS)} seeds and half the width of its 95 % interval. Every sample of a "
        "step is exactly eta versions old. The docstring of the program describes the arms, the game "
        "and the choice of the learning rates.\n\n"
        + "\n\n".join(tables)
        + f"\n\n![Reward by staleness](images/{PICTURE.stem}.png)",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save", type=Path, help="a file of finished runs, which are not repeated")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    options = parser.parse_args()
    quiet()
    runs = Runs(options.save)
    found: Curves = {}
    for arm, case in cases(options.steps):
        learning_rate, eta, name, steps = case
        for seed in SEEDS:
            key = (learning_rate, eta, name, seed, steps)
            if key not in runs:
                runs[key] = measure(
                    arm, eta=eta, learning_rate=learning_rate, seed=seed, steps=steps
                )
            found.setdefault(case, []).append(runs[key])
        what = f"learning rate {learning_rate:g}, eta {eta}, {steps} steps, {name}"
        took_s = sum(curve.cpu_s[-1] for curve in found[case])
        print(f"{what}: {with_interval(finals(found, case))}, {took_s:.0f} CPU-s", flush=True)
    if options.write:
        write(found, steps=options.steps)


if __name__ == "__main__":
    main()
