"""The cost of measuring each update of the policy, in CPU time of a step.

    python benchmarks/trust_region.py [--arms "two ranks, LoRA"] [--rounds 3] [--write]

SmolLM2-135M in bfloat16, one thread a rank, other settings by default. A step is 4 groups of 8 answers of 128 to 384
tokens, after prompts of 64 tokens; the short one has the shape of the demo, answers of 14 tokens after prompts of 60.
The learning rate is so small, and the bound so wide, that nothing is scaled back. `rest` is the step without the two passes that
measure its update: the trainer adds up the CPU time of each phase. All ranks together; medians of the rounds.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import transformers
from tables import table, write_section
from train_step import trajectory
from two_ranks import join, on_two_ranks

from areal_sdk.config import TrainerSection
from areal_sdk.fsdp.collectives import Ranks
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.models import resolve_model
from areal_sdk.trajectory import TrajectoryGroup

NUM_GROUPS, NUM_SIBLINGS = 4, 8


@dataclass(frozen=True)
class Arm:
    ranks: int = 1
    prompt: int = 64
    answers: tuple[int, int] = (128, 384)
    settings: dict[str, Any] = field(default_factory=dict)

    def groups(self) -> list[TrajectoryGroup]:
        rng = np.random.default_rng(0)
        groups = []
        for name in map(str, range(NUM_GROUPS)):
            prompt = rng.integers(100, 10_000, self.prompt).tolist()
            siblings = [
                trajectory(f"{name}.{k}", name, prompt, rng.integers(100, 10_000, count).tolist())
                for k, count in enumerate(rng.integers(*self.answers, NUM_SIBLINGS, endpoint=True))
            ]
            groups.append(TrajectoryGroup(name, name, tuple(siblings)))
        return groups


LORA = {"lora": {"rank": 16}}
SHORT = (14, 14)
ARMS = {
    "one rank": Arm(),
    "two ranks": Arm(ranks=2),
    "one rank, LoRA": Arm(settings=LORA),
    "two ranks, LoRA": Arm(ranks=2, settings=LORA),
    "one rank, short": Arm(prompt=60, answers=SHORT),
    "two ranks, LoRA, short": Arm(ranks=2, prompt=60, answers=SHORT, settings=LORA),
}


def measure(arm: Arm, ranks: Ranks, rounds: int) -> list[tuple[float, float]]:
    """The CPU-seconds of all ranks in each round: those that measure the update, and the rest."""
    settings: dict[str, Any] = {"learning_rate": 1e-7, "trust_region": 1e6, **arm.settings}
    section = TrainerSection(device="cpu", ranks=arm.ranks, **settings)
    trainer = RankTrainer(TrainerSpec(resolve_model("smollm2"), trainer=section), ranks)
    groups = arm.groups()
    warm = [TrajectoryGroup(g.id, g.task_id, g.trajectories[:2]) for g in groups[:2]]
    trainer.step(warm, version=0)
    found = []
    for _ in range(rounds):
        metrics = trainer.step(groups, version=0)
        assert metrics["update_share"] == metrics["num_updates"] == 1.0
        measuring = metrics["cpu_trust_region_s"]
        found.append((measuring, metrics["cpu_s"] - measuring))
    return found


def on_a_rank(rank: int, directory: Path, name: str, rounds: int) -> None:
    found = measure(ARMS[name], join(rank, directory), rounds)
    (directory / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def measured(name: str, rounds: int) -> list[tuple[float, float]]:
    if ARMS[name].ranks == 1:
        return measure(ARMS[name], Ranks(), rounds)
    with tempfile.TemporaryDirectory() as scratch:
        on_two_ranks(on_a_rank, Path(scratch), name, rounds)
        found: list[tuple[float, float]] = json.loads((Path(scratch) / "0.json").read_text())
        return found


def row(name: str, found: Sequence[tuple[float, float]]) -> tuple[str, ...]:
    measuring, rest = (statistics.median(values) for values in zip(*found, strict=True))
    return name, f"{rest:.1f}", f"{measuring:.2f}", f"{100 * measuring / rest:.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=[*ARMS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    rows = []
    for name in options.arms:
        rows.append(row(name, measured(name, options.rounds)))
        print(*rows[-1], sep="  ", flush=True)
    told = table(("step", "rest, CPU-s", "measuring, CPU-s", "share"), rows)
    print(told)
    if options.write:
        write_section(
            "trust-region",
            "## What measuring updates costs\n\n"
            f"`python benchmarks/trust_region.py --rounds {options.rounds} --write`: the docstring of the program "
            f"describes the steps.\n\n{told}",
        )


if __name__ == "__main__":
    main()
