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
steps. The learning rates are those of 2e-3, 5e-3 and 1e-2 that reached 0.8 at eta = 0 on seed 0, where
the arms are the same algorithm; seed 0 is not among the seeds that are reported.
"""

import argparse
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

from counting import VOCABULARY, evaluate, play
from one_process import Arm, Curve, Player, quiet, save_model, train
from pictures import Line, Panel, draw
from seeds import Runs, half_width, with_interval
from tables import DOCUMENT, table, write_section

from areal_sdk.config import TrainerSection

ARMS = (
    Arm("naive", "naive_ppo"),
    Arm("recompute", "grpo"),
    Arm("interpolate", "grpo", {"proximal": "interpolate"}),
)
ETAS = (0, 1, 2, 4, 8, 16)
NUM_SEEDS = {5e-3: 5, 2e-3: 3}
"""By learning rate."""
NUM_MINIBATCHES = 4
EVALUATE_EVERY = 3
Finals = dict[tuple[float, int, str], list[float]]
"""The final scores of the seeds, by (learning rate, eta, arm)."""
PICTURE = DOCUMENT.parent / "images" / "staleness.svg"


def measure(arm: Arm, *, eta: int, learning_rate: float, seed: int, steps: int) -> Curve:
    settings = TrainerSection(
        learning_rate=learning_rate,
        warmup_steps=0,
        precision="float32",
        device="cpu",
        num_minibatches=NUM_MINIBATCHES,
    )
    with tempfile.TemporaryDirectory() as directory:
        model = save_model(Path(directory), vocabulary=VOCABULARY, layers=1, seed=seed)
        return train(
            arm.trainer(model, settings),
            Player(model, seed=seed),
            play,
            evaluate,
            steps=steps,
            eta=eta,
            evaluated=lambda step: step % EVALUATE_EVERY == 0 or step > last_tenth(steps),
        )


def last_tenth(steps: int) -> int:
    return steps - steps // 10


def all_runs() -> Iterator[tuple[float, int, int, Arm]]:
    """(learning rate, seed, eta, arm), seed by seed."""
    for learning_rate, number in NUM_SEEDS.items():
        for seed, eta, arm in itertools.product(range(1, number + 1), ETAS, ARMS):
            yield learning_rate, seed, eta, arm


def table_of(found: Finals, learning_rate: float) -> str:
    rows = [
        (f"{eta}", *(with_interval(found[learning_rate, eta, arm.name]) for arm in ARMS))
        for eta in ETAS
    ]
    return table(("eta", *(arm.name for arm in ARMS)), rows)


def panel_of(found: Finals, learning_rate: float) -> Panel:
    def line(arm: Arm) -> Line:
        scores = [found[learning_rate, eta, arm.name] for eta in ETAS]
        return Line(arm.name, [mean(s) for s in scores], [half_width(s) for s in scores])

    title = f"learning rate {learning_rate:g}, {NUM_SEEDS[learning_rate]} seeds"
    return Panel(title, [str(eta) for eta in ETAS], [line(arm) for arm in ARMS])


def write(found: Finals, *, steps: int) -> None:
    title = "Final reward by staleness, with 95 % intervals"
    panels = [panel_of(found, learning_rate) for learning_rate in NUM_SEEDS]
    PICTURE.write_text(draw(title, "eta, in versions", panels))
    tables = [
        f"Learning rate {learning_rate:g}, {number} seeds:\n\n{table_of(found, learning_rate)}"
        for learning_rate, number in NUM_SEEDS.items()
    ]
    write_section(
        "staleness",
        "## Naive against decoupled PPO, by staleness\n\n"
        f"`python benchmarks/staleness.py --steps {steps} --write`: the final reward after {steps} "
        "steps, mean over the seeds and half the width of its 95 % interval. Every sample of a step is "
        "exactly eta versions old. The docstring of the program describes the arms, the game and the "
        "choice of the learning rates.\n\n"
        + "\n\n".join(tables)
        + f"\n\n![Final reward by staleness](images/{PICTURE.name})",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save", type=Path, help="a file of finished runs, which are not repeated")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    options = parser.parse_args()
    quiet()
    runs = Runs(options.save)
    found: Finals = {}
    for learning_rate, seed, eta, arm in all_runs():
        key = (learning_rate, eta, arm.name, seed, options.steps)
        if key not in runs:
            runs[key] = measure(
                arm, eta=eta, learning_rate=learning_rate, seed=seed, steps=options.steps
            )
        final, took_s = runs[key].final(last_tenth(options.steps)), runs[key].cpu_s[-1]
        found.setdefault((learning_rate, eta, arm.name), []).append(final)
        what = f"{learning_rate:g} eta {eta} {arm.name}, seed {seed}"
        print(f"{what}: {final:.3f}, {took_s:.1f} CPU-s", flush=True)
    for learning_rate in NUM_SEEDS:
        print(table_of(found, learning_rate))
    if options.write:
        write(found, steps=options.steps)


if __name__ == "__main__":
    main()
