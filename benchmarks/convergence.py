"""How many steps and CPU-seconds each algorithm needs to learn guess_number.

python benchmarks/convergence.py [--steps 100] [--save FILE] [--write]

The game is benchmarks/guessing.py: the environment of examples/agents/guess_number.py, played in one
process with one token for a message, so that 10 algorithms with 3 seeds each are minutes. The model (2
layers, 20,000 parameters) starts from random weights; 200 updates on the example's demonstrations go
first, the same for all algorithms of a seed. Losses, advantages, critic and optimiser are the package's
own. The options are those that the presets have by default; only the critic's learning rate is that of
the policy, as the default is meant for large models. A step trains 7 groups of 8 in 2 minibatches,
sampled by the weights of the step before (eta = 1). `dapo` plays up to 3 rounds more to replace groups
whose rewards are equal, as `rollout.dynamic_sampling` does; their CPU time counts.

The learning rate was tried on grpo and seed 0, which is not reported, and is the same for all: no
algorithm was tuned. The score is the success of fresh games, 50 for each digit, every 4 steps.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from guessing import VOCABULARY, demonstrate, evaluate, play
from one_process import Arm, Curve, Play, Player, quiet, save_model, train
from pictures import Line, Panel, draw, save
from seeds import Runs, half_width, with_interval
from tables import DOCUMENT, table, write_section

from areal_sdk.trajectory import TrajectoryGroup

LEARNING_RATE = 2e-3
PLAIN = ("rloo", "gspo", "dapo", "reinforce++", "cispo", "sapo", "m2po", "running_baseline")
ARMS = (
    Arm("grpo", "grpo"),
    Arm("ppo", "ppo", {"critic_learning_rate": LEARNING_RATE}),
    *(Arm(name, name) for name in PLAIN),
)
SEEDS = (1, 2, 3)
THRESHOLD = 0.9
ETA, NUM_MINIBATCHES, EVALUATE_EVERY = 1, 2, 4
NUM_MORE_ROUNDS = 3
"""Of dynamic sampling."""
PICTURE = DOCUMENT.parent / "images" / "convergence.svg"


def measure(arm: Arm, *, seed: int, steps: int) -> Curve:
    with tempfile.TemporaryDirectory() as directory:
        model = save_model(Path(directory), vocabulary=VOCABULARY, layers=2, seed=seed)
        trainer = arm.trainer(model, learning_rate=LEARNING_RATE, num_minibatches=NUM_MINIBATCHES)
        demonstrate(trainer)
        return train(
            trainer,
            Player(model, seed=seed),
            refilled(play) if arm.name == "dapo" else play,
            evaluate,
            steps=steps,
            eta=ETA,
            evaluated=lambda step: step % EVALUATE_EVERY == 0,
        )


def refilled(play: Play) -> Play:
    """Dynamic sampling: groups of equal rewards give way to others, as far as more rounds bring any."""

    def play_more(player: Player, step: int) -> Sequence[TrajectoryGroup]:
        groups = list(play(player, step))
        size = len(groups)
        kept = [group for group in groups if differs(group)]
        idle = [group for group in groups if not differs(group)]
        for _ in range(NUM_MORE_ROUNDS):
            if len(kept) < size:
                kept += [group for group in play(player, step) if differs(group)]
        return [*kept, *idle][:size]

    return play_more


def differs(group: TrajectoryGroup) -> bool:
    return len({row.reward for row in group.trajectories}) > 1


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
    save(draw("Success on guess_number, by algorithm and step", panels), PICTURE)
    write_section(
        "convergence",
        "## Convergence of the algorithms on guess_number\n\n"
        f"`python benchmarks/convergence.py --steps {steps} --write`: steps and CPU-seconds of playing "
        f"and training until the success of fresh games is {THRESHOLD}, for each of {len(SEEDS)} seeds; "
        f"then the mean success over the last tenth of {steps} steps, with half the width of its 95 % "
        "interval. The docstring of the program describes the game and the options.\n\n"
        f"{text}\n\n![Success by algorithm](images/{PICTURE.stem}.png)",
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
        "success at the end",
    )
    text = table(header, [row_of(arm, found[arm.name]) for arm in ARMS])
    print(text)
    if options.write:
        write(found, text, steps=options.steps)


if __name__ == "__main__":
    main()
