"""The cost of recording what a step makes of each token: CPU time of the trainer with and without, and bytes.

    OMP_NUM_THREADS=1 python benchmarks/token_record.py [--model smollm2] [--rounds 5]

Steps with and without the record take turns in one process, on the batches of train_step.py. `with / without` is the ratio of
their medians, which other programs on the machine disturb. `record` is the record's own CPU time, in a step that has it: of
collecting and gathering, and of what rank 0 encodes. `file` is the main process's, beside the next step.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec, TypeVar

from train_step import alike, mixed

from areal_sdk.config import RunSection, TrainerSection
from areal_sdk.fsdp.group_wire import encode_tokens
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.fsdp.step.recording import StepRecord
from areal_sdk.models import resolve_model
from areal_sdk.telemetry.token_log import TokenWriter, file_of
from areal_sdk.trajectory import TrajectoryGroup

P = ParamSpec("P")
T = TypeVar("T")


class Clock:
    """Sums the CPU time of what it is asked to do."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def over(self, function: Callable[P, T]) -> Callable[P, T]:
        def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            began = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.process_time() - began

        return timed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    model = resolve_model(options.model)
    spec = TrainerSpec(model, trainer=TrainerSection(device="cpu", threads=1))
    silent = replace(spec, run=RunSection(keep_tokens=0))
    arms = {"with": RankTrainer(spec), "without": RankTrainer(silent)}
    for name, groups in {"alike": alike(model), "mixed": mixed()}.items():
        print(f"{options.model}, {name}: {_compare(arms, [*groups], rounds=options.rounds)}")


def _compare(arms: dict[str, RankTrainer], groups: list[TrajectoryGroup], *, rounds: int) -> str:
    record, file = Clock(), Clock()
    spent: dict[str, list[float]] = {name: [] for name in arms}
    with tempfile.TemporaryDirectory() as scratch:
        write = file.over(TokenWriter(Path(scratch)).write)
        encode = record.over(encode_tokens)
        StepRecord.add = record.over(StepRecord.add)  # type: ignore[method-assign]
        StepRecord.gathered = record.over(StepRecord.gathered)  # type: ignore[method-assign]
        for trainer in arms.values():
            trainer.step(groups, version=0)  # what is made once
        record.seconds = 0.0
        for number in range(rounds):
            for name, trainer in arms.items():
                began = time.process_time()
                trainer.step(groups, version=0)
                encode(trainer.tokens)
                spent[name].append(time.process_time() - began)
                if trainer.tokens is not None:
                    write(number, trainer.tokens)
        tokens = arms["with"].tokens
        assert tokens is not None
        size = file_of(Path(scratch), 0).stat().st_size
    step = {name: statistics.median(seconds) for name, seconds in spent.items()}
    count = tokens.num_tokens
    return (
        f"{count} tokens, step {step['without']:.2f} CPU-s, with / without {step['with'] / step['without']:.4f}; "
        f"record {1000 * record.seconds / rounds:.2f} ms = {100 * record.seconds / rounds / step['without']:.3f} % of it; "
        f"file {1000 * file.seconds / rounds:.2f} ms, {size / count:.1f} bytes a token"
    )


if __name__ == "__main__":
    main()
