"""Records runs of the gauntlet step by step, in the form of tests/records/recorded_runs.json.

    python benchmarks/record_runs.py --into FILE [--tasks reverse grid] [--rates 1e-3 5e-3] [--seeds 1 2]
        [--steps 120] [--set trust_region=0]

Each run plays in one process, as `gauntlet.py one-process` does, without its evaluations. Runs that the file
has are not repeated. Verdicts and the guard are tested on such records.
"""

import argparse
import itertools
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import gauntlet_one_process as in_process
from one_process import Arm, Player, Taken, quiet, save_model, train

METRICS = (
    "kl_step",
    "kl_behaviour",
    "kl_behaviour_after",
    "update_share",
    "staleness_mean",
    "ess",
    "entropy",
    "num_updates",
    "num_skipped_updates",
    "num_trained",
    "share_without_advantage",
)
DIGITS = 5
"""Significant digits that a record keeps."""


def observe(taken: Taken) -> dict[str, float]:
    rewards = [[row.reward for row in group.trajectories] for group in taken.groups]
    of_all = [reward for group in rewards for reward in group]
    return {
        "batch/groups": float(len(rewards)),
        "batch/episodes": float(len(of_all)),
        "batch/uniform_groups": float(sum(len({*group}) == 1 for group in rewards)),
        "batch/reward": fmean(of_all),
        "batch/reward_std": pstdev(of_all),
        "batch/success": fmean(reward == 1.0 for reward in of_all),
        "batch/truncated": 0.0,
        **{f"train/{name}": taken.metrics.get(name, 0.0) for name in METRICS},
    }


def record(task: str, *, seed: int, rate: float | str, steps: int, more: Mapping[str, Any]) -> Any:
    """One run: its settings and, for each metric, a number or one a step."""
    num_groups = in_process.NUM_GROUPS
    vocabulary, _, play, evaluate = in_process.opened(task, seed=seed, num_groups=num_groups)
    settings = {"warmup_steps": 5, "learning_rate": rate, **more}
    with tempfile.TemporaryDirectory() as directory:
        model = save_model(Path(directory), vocabulary=vocabulary, layers=2, seed=seed)
        player = Player(model, seed=seed)
        player.load(in_process.demonstrated(task, seed), 0)
        player.model.save_pretrained(model)
        trainer = Arm("grpo", "grpo").trainer(model, **settings)
        curve = train(
            trainer,
            player,
            play,
            evaluate,
            steps=steps,
            eta=1,
            evaluated=lambda step: False,
            observe=observe,
        )
    columns = {
        name: [float(f"{value:.{DIGITS}g}") for value in values]
        for name, values in curve.per_step.items()
    }
    return {
        "settings": {
            "algorithm": {"name": "grpo"},
            "trainer": settings,
            "rollout": {"batch": num_groups * in_process.NUM_SIBLINGS, "max_staleness": 1},
        },
        "num_steps": steps,
        "steps": {
            name: values[0] if len({*values}) == 1 else values for name, values in columns.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", choices=in_process.TASKS, default=["reverse"])
    parser.add_argument("--rates", nargs="+", default=["1e-3", "5e-3"], help='or "auto"')
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="of [trainer]")
    options = parser.parse_args()
    quiet()
    runs = json.loads(options.into.read_text()) if options.into.exists() else {}
    for task, seed, rate in itertools.product(options.tasks, options.seeds, options.rates):
        name = ", ".join((task, f"rate of {rate}", f"seed {seed}", *options.set))
        if name in runs:
            continue
        runs[name] = record(
            task,
            seed=seed,
            rate=rate if rate == "auto" else float(rate),
            steps=options.steps,
            more=in_process.assignments(options.set),
        )
        options.into.write_text(json.dumps(runs))
        print(name, flush=True)


if __name__ == "__main__":
    main()
