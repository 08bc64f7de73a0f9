"""The time for which a checkpoint holds the trainer, and the cost of its parts.

    python benchmarks/checkpoints.py [--model tiny] [--repeats 5]

`copied` is the time that the next step waits: the state goes into host memory. `written` happens beside
the steps: files, checksums, and the disk. Before checkpoints were written beside the steps, a step waited
for all of `written`, and for no copy. The parts are measured one after the other in one process.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from areal_sdk.config import TrainerSection
from areal_sdk.fsdp.checkpoint import check_files, load_checkpoint
from areal_sdk.fsdp.checkpoint.saving import Snapshot
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.models import resolve_model
from areal_sdk.telemetry.checksums import write_manifest


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    trainer = RankTrainer(TrainerSpec(resolve_model(options.model), trainer=TrainerSection()))
    _give_moments(trainer)
    parts: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / "step-000001"
        for _ in range(options.repeats):
            began = time.monotonic()
            snapshot = Snapshot.of(trainer, {})
            parts.setdefault("copied (the step waits)", []).append(time.monotonic() - began)
            _time(parts, "written (beside the steps)", partial(snapshot.write, directory))
            _time(parts, "  of it: checksums", lambda: write_manifest(directory))
            _time(parts, "checked before a resume", lambda: check_files(directory))
            _time(parts, "checked and loaded", lambda: load_checkpoint(trainer, directory))
            del snapshot  # the next copy takes its room
        size = sum(path.stat().st_size for path in directory.iterdir())
    print(f"{options.model}: {size / 2**20:.1f} MiB, median of {options.repeats} in ms")
    for name, seconds in parts.items():
        low, high = 1000 * min(seconds), 1000 * max(seconds)
        print(f"{name:32}{1000 * statistics.median(seconds):10.1f}   ({low:.1f} to {high:.1f})")


def _give_moments(trainer: RankTrainer) -> None:
    """The state of an optimiser that has taken steps, without the minutes that those take."""
    for parameter in trainer.policy.parameters():
        trainer.optimizer.state[parameter] = {
            "step": torch.ones(()),
            "exp_avg": torch.randn_like(parameter),
            "exp_avg_sq": torch.rand_like(parameter),
        }
    trainer.num_updates = 1


def _time(parts: dict[str, list[float]], name: str, action: Callable[[], object]) -> None:
    began = time.monotonic()
    action()
    parts.setdefault(name, []).append(time.monotonic() - began)


if __name__ == "__main__":
    main()
