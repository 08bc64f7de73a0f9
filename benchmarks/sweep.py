"""Are the defaults right? One setting changed at a time, on tasks of the gauntlet, with the same number of episodes.

    python benchmarks/sweep.py [--tasks sort_digits two_tools] [--arms default "batch 64"] [--seeds 1 2 3]
        [--save FILE] [--table] [--write]

The model, the tasks and the weak demonstrations are those of `benchmarks/gauntlet.py one-process`: 20,000 parameters,
one token a word. Each run plays 3,840 episodes in groups of 8 under `grpo`; the default is a batch of 32, samples one
version old, one minibatch, 5 steps of warm-up, the rate that follows the bound, and a bound of 0.3 nats an episode.
A cell is the success of the last three evaluations, the mean over the seeds. `all` is the mean over the tasks, and
`against default` the mean over tasks and seeds of the difference, with its 95 % interval.
"""

import argparse
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import gauntlet_one_process as in_process
from one_process import quiet
from seeds import Runs
from tables import table, write_section

TASKS = ("sort_digits", "two_tools", "tool_choice", "reverse")
EPISODES = 3840
NORMAL = 1.96
"""The 97.5 % quantile; there are 12 differences or more."""


@dataclass(frozen=True)
class Arm:
    """The default with one change."""

    groups: int = in_process.NUM_GROUPS
    eta: int = 1
    rate: float | str = "auto"
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        return EPISODES // (self.groups * in_process.NUM_SIBLINGS)


ARMS = {
    "default": Arm(),
    "batch 16": Arm(groups=2),
    "batch 64": Arm(groups=8),
    "batch 128": Arm(groups=16),
    "0 versions old": Arm(eta=0),
    "2 versions old": Arm(eta=2),
    "4 versions old": Arm(eta=4),
    "8 versions old": Arm(eta=8),
    "2 minibatches": Arm(settings={"num_minibatches": 2}),
    "4 minibatches": Arm(settings={"num_minibatches": 4}),
    "no warm-up": Arm(settings={"warmup_steps": 0}),
    "warm-up of 20": Arm(settings={"warmup_steps": 20}),
    "bound 0.1": Arm(settings={"trust_region": 0.1}),
    "bound 1": Arm(settings={"trust_region": 1.0}),
    "fixed 1e-3": Arm(rate=1e-3),
    "fixed 1e-3, no bound": Arm(rate=1e-3, settings={"trust_region": 0.0}),
    "fixed 2e-5": Arm(rate=2e-5),
}
Finals = dict[tuple[str, str, int], float]
"""The final success by arm, task and seed."""


def row(name: str, finals: Finals, tasks: Sequence[str], seeds: Sequence[int]) -> tuple[str, ...]:
    played = list(itertools.product(tasks, seeds))
    by_task = {task: mean(finals[name, task, seed] for seed in seeds) for task in tasks}
    gains = [finals[name, *of] - finals["default", *of] for of in played]
    error = NORMAL * stdev(gains) / len(gains) ** 0.5
    told = "" if name == "default" else f"{mean(gains):+.3f} ± {error:.3f}"
    cells = (f"{value:.2f}" for value in by_task.values())
    return (name, *cells, f"{mean(by_task.values()):.3f}", told)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", nargs="+", choices=in_process.WORD_TASKS, default=TASKS)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=[*ARMS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--save", type=Path, help="a file of finished runs, which are not repeated")
    parser.add_argument("--table", action="store_true", help="only show the runs in the file")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    options = parser.parse_args()
    quiet()
    runs = Runs(options.save)
    finals: Finals = {}
    order = itertools.product(
        options.tasks, options.seeds, dict.fromkeys(["default", *options.arms])
    )
    for task, seed, name in order:
        arm = ARMS[name]
        case = in_process.Case(task, seed, "grpo", arm.rate, arm.steps, arm.eta, arm.groups)
        key = (name, *case.key([]))
        if key not in runs and not options.table:
            runs[key] = in_process.measure(case, settings=arm.settings, options={})
        if key in runs:
            finals[name, task, seed] = in_process.judged(case, in_process.outcome(runs[key])).final
            print(f"{name}: {case}: {finals[name, task, seed]:.2f}", flush=True)
    whole = [
        name
        for name in dict.fromkeys(["default", *options.arms])
        if all((name, *of) in finals for of in itertools.product(options.tasks, options.seeds))
    ]
    header = ("changed", *(f"`{task}`" for task in options.tasks), "all", "against default")
    told = table(header, [row(name, finals, options.tasks, options.seeds) for name in whole])
    print(told)
    if options.write:
        about = "One setting changed at a time, 3,840 episodes each; the docstring of the program describes the runs."
        command = (
            f"`python benchmarks/sweep.py --seeds {' '.join(map(str, options.seeds))} --write`"
        )
        write_section("sweep", f"## Are the defaults right?\n\n{command}: {about}\n\n{told}")


if __name__ == "__main__":
    main()
