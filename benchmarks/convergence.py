"""How many steps and CPU-seconds each algorithm needs on one game.

python benchmarks/convergence.py [--steps 100] [--save FILE] [--write]

The game is benchmarks/counting.py, from a random model (1 layer, 12,000 parameters): a run takes seconds,
so that 10 algorithms with 3 seeds each are minutes. Losses, advantages, critic and optimiser are the
package's own. The options are those that the presets have by default; only the critic's learning rate is
that of the policy, as the default is meant for large models. A step trains 4 groups of 16 in 2
minibatches, sampled by the weights of the step before (eta = 1). `dapo` runs without its two additions,
dynamic sampling and the limit of length: what is left of it is `grpo`.

The score is the mean reward of fresh samples, every 4 steps.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from counting import VOCABULARY, evaluate, play
from one_process import Arm, Curve, Player, quiet, save_model, train
from pictures import Line, Panel, draw
from seeds import Runs, half_width, with_interval
from tables import DOCUMENT, table, write_section

from areal_sdk.config import TrainerSection

LEARNING_RATE = 2e-3
PLAIN = ("rloo", "gspo", "dapo", "reinforce++", "cispo", "sapo", "m2po", "running_baseline")
ARMS = (
    Arm("grpo", "grpo"),
    Arm("ppo", "ppo", {"critic_learning_rate": LEARNING_RATE}),
    *(Arm(name, name) for name in PLAIN),
)
SEEDS = (1, 2, 3)
THRESHOLD = 0.8
ETA, NUM_MINIBATCHES, EVALUATE_EVERY = 1, 2, 4
PICTURE = DOCUMENT.parent / "images" / "convergence.svg"


def measure(arm: Arm, *, seed: int, steps: int) -> Curve:
    settings = TrainerSection(
        learning_rate=LEARNING_RATE,
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
            eta=ETA,
            evaluated=lambda step: step % EVALUATE_EVERY == 0,
        )


def row_of(arm: Arm, curves: Sequence[Curve]) -> tuple[str, ...]:
    """Every seed counts: one that never arrives is shown as such."""
    arrivals = [curve.reaches(THRESHOLD) for curve in curves]
    steps = " / ".join("never" if a is None else str(a[0]) for a in arrivals)
    seconds = " / ".join("never" if a is None else f"{a[1]:.1f}" for a in arrivals)
    finals = [curve.final(curve.steps[-1] * 9 // 10) for curve in curves]
    return f"`{arm.name}`", steps, seconds, with_interval(finals)


def panel_of(title: str, arms: Sequence[Arm], found: dict[str, list[Curve]]) -> Panel:
    def line(arm: Arm) -> Line:
        scores = list(zip(*(curve.scores for curve in found[arm.name]), strict=True))
        return Line(arm.name, [mean(s) for s in scores], [half_width(s) for s in scores])

    steps = found[arms[0].name][0].steps
    places = [str(step) if step % (5 * EVALUATE_EVERY) == 0 else "" for step in steps]
    return Panel(title, places, [line(arm) for arm in arms])


def write(found: dict[str, list[Curve]], text: str, *, steps: int) -> None:
    half = len(ARMS) // 2
    panels = [
        panel_of("mean of 3 seeds and 95 % interval", ARMS[:half], found),
        panel_of("the other algorithms, likewise", ARMS[half:], found),
    ]
    PICTURE.write_text(draw("Reward of fresh samples, by algorithm", "steps", panels))
    write_section(
        "convergence",
        "## Convergence of the algorithms\n\n"
        f"`python benchmarks/convergence.py --steps {steps} --write`: steps and CPU-seconds of playing "
        f"and training until the reward of fresh samples is {THRESHOLD}, for each of {len(SEEDS)} seeds; "
        f"then the mean reward over the last tenth of {steps} steps, with half the width of its 95 % "
        "interval. The docstring of the program describes the game and the options.\n\n"
        f"{text}\n\n![Reward by algorithm](images/{PICTURE.name})",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--save", type=Path, help="a file of finished runs, which are not repeated")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    options = parser.parse_args()
    quiet()
    runs = Runs(options.save)
    found: dict[str, list[Curve]] = {arm.name: [] for arm in ARMS}
    for seed in SEEDS:
        for arm in ARMS:
            key = (arm.name, seed, options.steps)
            if key not in runs:
                runs[key] = measure(arm, seed=seed, steps=options.steps)
            found[arm.name].append(runs[key])
            curve = " ".join(f"{score:.2f}" for score in runs[key].scores[::5])
            print(f"{arm.name}, seed {seed}: {curve}; {runs[key].cpu_s[-1]:.1f} CPU-s", flush=True)
    header = (
        "algorithm",
        f"steps to {THRESHOLD}",
        f"CPU-s to {THRESHOLD}",
        "reward at the end",
    )
    text = table(header, [row_of(arm, found[arm.name]) for arm in ARMS])
    print(text)
    if options.write:
        write(found, text, steps=options.steps)


if __name__ == "__main__":
    main()
