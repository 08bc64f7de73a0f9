"""The steps and CPU-seconds that each algorithm needs to learn guess_number.

python benchmarks/convergence.py [--save FILE] [--write]
python benchmarks/convergence.py --redraw

The curves of finished runs are in docs/images/convergence.json: these runs are not repeated, and `--redraw` makes
table and picture of them again.

The game is benchmarks/guessing.py: the environment of examples/agents/guess_number.py, played in one
process with one token for a message, so that 10 algorithms with 3 seeds each are minutes. The model (2
layers, 20,000 parameters) starts from random weights; 200 updates on the example's demonstrations go
first, the same for all algorithms of a seed. Losses, advantages, critic and optimiser are the package's
own. The options are those that the presets have by default; only the critic's learning rate is that of
the policy, as the default is meant for large models. A step trains 7 groups of 8 in 2 minibatches,
sampled by the weights of the step before (eta = 1). `dapo` plays up to 3 rounds more to replace groups
whose rewards are equal, as `rollout.dynamic_sampling` does; their CPU time counts.

The learning rate is the same for all: no algorithm was tuned. At 2e-3, twice this one, some runs stop at
6/7: they play six digits well and grow certain before they ever win with the seventh, whose group then has
equal rewards and teaches nothing; 100 steps more change nothing there. It was one run of three of cispo,
m2po and sapo on the seeds below, and one of four of grpo, m2po and sapo on the seeds 0, 4, 5 and 6, with which
1e-3 was chosen: there all four runs of cispo, m2po and sapo reached 0.9. The score is the success of
fresh games, 50 for each digit, every 4 steps.
"""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from guessing import VOCABULARY, demonstrate, evaluate, play
from one_process import Arm, Curve, Play, Player, quiet, save_model, train
from pictures import Line, Panel, draw, save
from seeds import Key, Runs, half_width, load_curves, save_curves, with_interval
from tables import DOCUMENT, table, write_section

from areal_sdk.trajectory import TrajectoryGroup

LEARNING_RATE = 1e-3
PLAIN = ("rloo", "gspo", "dapo", "reinforce++", "cispo", "sapo", "m2po", "running_baseline")
ARMS = (
    Arm("grpo", "grpo"),
    Arm("ppo", "ppo", {"critic_learning_rate": LEARNING_RATE}),
    *(Arm(name, name) for name in PLAIN),
)
SEEDS = (1, 2, 3)
THRESHOLD = 0.9
STEPS, ETA, NUM_MINIBATCHES, EVALUATE_EVERY = 120, 1, 2, 4
NUM_MORE_ROUNDS = 3
"""Largest number of further rounds of dynamic sampling."""
PICTURE = DOCUMENT.parent / "images" / "convergence.svg"
CURVES = PICTURE.with_suffix(".json")
Curves = dict[str, dict[int, Curve]]
"""Curves by algorithm and seed."""
HEADER = ("algorithm", f"steps to {THRESHOLD}", f"CPU-s to {THRESHOLD}", "success at the end")


def measure(arm: Arm, *, seed: int) -> Curve:
    with tempfile.TemporaryDirectory() as directory:
        model = save_model(Path(directory), vocabulary=VOCABULARY, layers=2, seed=seed)
        trainer = arm.trainer(model, learning_rate=LEARNING_RATE, num_minibatches=NUM_MINIBATCHES)
        demonstrate(trainer)
        return train(
            trainer,
            Player(model, seed=seed),
            refilled(play) if arm.name == "dapo" else play,
            evaluate,
            steps=STEPS,
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


def row_of(arm: Arm, curves: Mapping[int, Curve]) -> tuple[str, ...]:
    """Every seed counts: one that never arrives is shown as such, and one that was not run too."""

    def shown(part: int, digits: int) -> str:
        cells = []
        for seed in SEEDS:
            if seed not in curves:
                cells.append("-")
            elif arrival := curves[seed].reaches(THRESHOLD):
                cells.append(f"{arrival[part]:.{digits}f}")
            else:
                cells.append("never")
        return " / ".join(cells)

    finals = [curve.final(STEPS * 9 // 10) for curve in curves.values()]
    final = with_interval(finals) if len(finals) > 1 else f"{finals[0]:.2f}"
    return f"`{arm.name}`", shown(0, 0), shown(1, 1), final


def panel_of(title: str, arms: Sequence[Arm], found: Curves) -> Panel:
    def line(arm: Arm) -> Line:
        curves = found[arm.name].values()
        scores = list(zip(*(curve.scores for curve in curves), strict=True))
        spread = [half_width(s) for s in scores] if len(curves) > 1 else ()
        return Line(arm.name, [mean(s) for s in scores], spread)

    steps = next(iter(found[arms[0].name].values())).steps
    places = [str(step) if step % (5 * EVALUATE_EVERY) == 0 else "" for step in steps]
    return Panel(title, places, [line(arm) for arm in arms])


def by_series(curves: Mapping[Key, Curve]) -> Curves:
    return {
        arm.name: {
            seed: curves[arm.name, seed, STEPS]
            for seed in SEEDS
            if (arm.name, seed, STEPS) in curves
        }
        for arm in ARMS
    }


def table_of(found: Curves) -> str:
    return table(HEADER, [row_of(arm, found[arm.name]) for arm in ARMS])


def picture_of(found: Curves) -> str:
    half = len(ARMS) // 2
    panels = [
        panel_of("mean over seeds and 95 % interval", ARMS[:half], found),
        panel_of("the other algorithms, likewise", ARMS[half:], found),
    ]
    return draw("Success on guess_number, by algorithm and step", panels)


def section_of(found: Curves) -> str:
    return (
        "## Convergence of the algorithms on guess_number\n\n"
        f"`python benchmarks/convergence.py --write`: steps and CPU-seconds of playing and training until the "
        f"success of fresh games is {THRESHOLD}, for each of {len(SEEDS)} seeds; then the mean success over the last "
        f"tenth of {STEPS} steps, with half the width of its 95 % interval. The docstring of the program describes "
        f"the game and the options. [All curves](images/{CURVES.name}); `--redraw` makes table and picture of them."
        f"\n\n{table_of(found)}\n\n![Success by algorithm](images/{PICTURE.stem}.png)"
    )


def write(curves: Mapping[Key, Curve]) -> None:
    found = by_series(curves)
    save(picture_of(found), PICTURE)
    write_section("convergence", section_of(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", type=Path, help="a file of finished runs, which are not repeated")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    parser.add_argument("--redraw", action="store_true", help="docs/images/convergence.json, again")
    options = parser.parse_args()
    if options.redraw:
        write(load_curves(CURVES))
        return
    quiet()
    runs = Runs(options.save)
    curves = load_curves(CURVES)
    for seed in SEEDS:
        for arm in ARMS:
            key = (arm.name, seed, STEPS)
            if key in curves:
                continue
            if key not in runs:
                runs[key] = measure(arm, seed=seed)
            curves[key] = runs[key]
            shown = " ".join(f"{score:.2f}" for score in runs[key].scores[::5])
            print(f"{arm.name}, seed {seed}: {shown}; {runs[key].cpu_s[-1]:.1f} CPU-s", flush=True)
    print(table_of(by_series(curves)))
    if options.write:
        write(save_curves(curves, CURVES))


if __name__ == "__main__":
    main()
