"""The bytes that two ranks send each other in an update, against the theory, and the CPU time that
being two costs.

    python benchmarks/traffic.py [--rounds 2] [--write]

SmolLM2-135M in bfloat16, one thread a rank. Bytes: an update on 4 micro-batches of 64 tokens, two on each rank;
they do not depend on the tokens. `tests/toolbox/rank_traffic.py` has the formulas and the count. CPU time: an
update on 4 micro-batches of 512 tokens, by one rank and by two, all ranks together, medians of the rounds.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tables import table, write_section
from two_ranks import join, on_two_ranks

from areal_sdk.config import TrainerSection
from areal_sdk.fsdp.collectives import Ranks
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.models import resolve_model
from areal_sdk.shapes import ModelShape
from areal_sdk.trainer import Demonstration
from tests.toolbox.rank_traffic import CountedTraffic, predict_sent

MICROBATCHES, FEW, TOKENS = 4, 64, 512
RANKS = 2
CASES: dict[str, dict[str, Any]] = {
    "the default": {},
    "`defer_gradient_sync = false`": {"defer_gradient_sync": False},
    "`replicas = 2`": {"replicas": 2},
}


def rows(num_tokens: int) -> list[Demonstration]:
    rng = np.random.default_rng(0)
    mask = (False,) + (True,) * (num_tokens - 1)
    return [
        Demonstration(tuple(rng.integers(100, 10_000, num_tokens).tolist()), mask)
        for _ in range(MICROBATCHES)
    ]


def make_trainer(ranks: Ranks, num_tokens: int, settings: dict[str, Any]) -> RankTrainer:
    """A trainer that is warm."""
    section = TrainerSection(
        ranks=ranks.size, device="cpu", tokens_per_microbatch=num_tokens, **settings
    )
    trainer = RankTrainer(TrainerSpec(resolve_model("smollm2"), trainer=section), ranks)
    trainer.learn(rows(FEW)[: ranks.size], learning_rate=1e-5)
    return trainer


def measure_bytes(ranks: Ranks, settings: dict[str, Any]) -> dict[str, Any]:
    trainer = make_trainer(ranks, FEW, settings)
    with CountedTraffic() as counted:
        trainer.learn(rows(FEW), learning_rate=1e-5)
    return {"calls": counted.calls, "sent": asdict(counted.sent)}


def measure_cpu(ranks: Ranks, rounds: int) -> list[float]:
    """CPU-seconds of one rank in each round."""
    trainer, seconds = make_trainer(ranks, TOKENS, {}), []
    for _ in range(rounds):
        began = time.process_time()
        trainer.learn(rows(TOKENS), learning_rate=1e-5)
        seconds.append(time.process_time() - began)
    return seconds


def on_a_rank(rank: int, directory: Path, measure: Callable[..., object], argument: object) -> None:
    found = measure(join(rank, directory), argument)
    (directory / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def on_two(measure: Callable[..., Any], argument: object) -> list[Any]:
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        on_two_ranks(on_a_rank, directory, measure, argument)
        return [json.loads((directory / f"{r}.json").read_text()) for r in range(RANKS)]


def counted_bytes() -> str:
    config = json.loads((resolve_model("smollm2") / "config.json").read_text())
    lines: list[tuple[object, ...]] = []
    for name, settings in CASES.items():
        section = TrainerSection(ranks=RANKS, **settings)
        expected = asdict(
            predict_sent(
                ModelShape.of(config),
                section,
                num_microbatches=MICROBATCHES // RANKS,
                num_measured=0,  # demonstrations
            )
        )
        found, other = on_two(measure_bytes, settings)
        assert found["sent"] == other["sent"], "the ranks do the same"
        for kind, of_theory in expected.items():
            megabytes = (f"{sent / 1e6:.2f}" for sent in (found["sent"][kind], of_theory))
            lines.append((name, kind, found["calls"].get(kind, 0), *megabytes))
            print(*lines[-1], sep="  ", flush=True)
    return table(("two ranks with", "what", "calls", "MB a rank sent", "MB in theory"), lines)


def costs(rounds: int) -> str:
    alone = statistics.median(measure_cpu(Ranks(), rounds))
    two = statistics.median(map(sum, zip(*on_two(measure_cpu, rounds), strict=True)))
    lines = [
        (
            name,
            f"{cpu_s:.1f}",
            f"{1000 * cpu_s / MICROBATCHES / TOKENS:.2f}",
            f"{alone / cpu_s:.0%}",
        )
        for name, cpu_s in (("one", alone), ("two", two))
    ]
    print(*lines, sep="\n", flush=True)
    return table(("ranks", "CPU-s, all of them", "CPU-ms a token", "efficiency"), lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = (counted_bytes(), costs(options.rounds))
    if options.write:
        write_section(
            "traffic",
            "## What two ranks send\n\n"
            f"`python benchmarks/traffic.py --rounds {options.rounds} --write`: the docstring of the program says "
            "what is measured.\n\n" + "\n\n".join(found),
        )


if __name__ == "__main__":
    main()
