"""One of two ranks in a process of its own, and what it measures of itself.

python -m tests.fsdp.two_ranks DIRECTORY RANK
"""

import json
import sys
import time
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from areal_sdk.algorithms.batch import Batch, make_batch
from areal_sdk.algorithms.examples import make_demonstration
from areal_sdk.algorithms.packing import build_trees
from areal_sdk.fsdp.collectives import Ranks
from areal_sdk.fsdp.kernels.sequence_ranks import SequenceRanks
from areal_sdk.fsdp.loading import as_it_is, load_trained
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.trainer import Demonstration
from tests.fsdp.episodes import make_groups
from tests.fsdp.specs import trainer_spec
from tests.toolbox.measured_memory import measure_bytes
from tests.toolbox.rank_traffic import CountedTraffic

MICROBATCH_TOKENS = 128
SENT: dict[str, dict[str, Any]] = {
    "deferred": {"ranks": 2},
    "each": {"ranks": 2, "defer_gradient_sync": False},
    "in float32": {"ranks": 2, "precision": "float32"},
    "copies": {"ranks": 2, "replicas": 2},
}
ADAPTER: dict[str, Any] = {"ranks": 2, "lora": {"rank": 4}}
"""Settings under which a step's messages are counted."""


def row(num_tokens: int) -> Batch:
    tokens = np.random.default_rng(0).integers(0, 250, num_tokens).tolist()
    example = make_demonstration(tokens, [True] * num_tokens)
    assert example is not None
    return make_batch(build_trees([example.inputs], max_tokens=num_tokens), [example], version=0)


def loading(spec: TrainerSpec, ranks: Ranks) -> dict[str, int]:
    """Bytes taken while the model comes onto the ranks, and of the tensors that stay."""
    kept: list[Any] = []
    measured = measure_bytes(lambda: kept.append(load_trained(spec, ranks, as_it_is)))
    sizes = [p.to_local().numel() * 4 for p in kept[0].parameters()]
    return {
        "peak": measured.peak,
        "largest": measured.largest,
        "largest_part": max(sizes),
        "whole": sum(p.numel() * 4 for p in kept[0].parameters()),
    }


def after_the_forward(spec: TrainerSpec, ranks: Ranks) -> dict[str, int]:
    """Bytes that a pass over two tokens leaves, which are those of gathered weights or few."""
    policy, batch = load_trained(spec, ranks, as_it_is), row(2)

    def forward() -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logprobs_T: torch.Tensor = policy(batch)[0]
        return logprobs_T

    def settled() -> torch.Tensor:
        logprobs_T = forward()
        time.sleep(0.5)  # gloo's threads free what they gathered a moment later
        return logprobs_T

    torch.autograd.backward(forward().sum())  # what is made once
    left = median(measure_bytes(settled).left for _ in range(3))
    return {"left": int(left), "layer": 2 * sum(p.numel() for p in policy.layers[0].parameters())}


def sent_in_a_step(spec: TrainerSpec, ranks: Ranks) -> dict[str, Any]:
    """Collectives of one step, what this rank sent for them, and how many micro-batches it had."""
    trainer = RankTrainer(spec, ranks)
    seen: list[bool] = []
    trainer.policy.register_forward_pre_hook(lambda *_: seen.append(torch.is_grad_enabled()))
    with CountedTraffic() as counted:
        metrics = trainer.step(make_groups(4), version=0)
    return {
        "recorded": int(metrics["num_counted"]),
        "calls": counted.calls,
        "sent": asdict(counted.sent),
        "microbatches": sum(seen),
        "measured": seen.count(False),
        "trained": sum(p.numel() for p in trainer.policy.parameters() if p.requires_grad),
    }


def step_of(spec: TrainerSpec, ranks: Ranks) -> dict[str, int]:
    """Bytes of an update with two micro-batches on each rank, and what was there before."""
    trainer = RankTrainer(spec, ranks)
    rng = np.random.default_rng(0)
    rows = [
        Demonstration(tuple(rng.integers(0, 250, n + 1).tolist()), (False,) + (True,) * n)
        for n in [MICROBATCH_TOKENS] * 4
    ]
    trainer.learn(rows, learning_rate=1e-4)
    parameters: Any = trainer.policy.parameters()
    lasting = sum(3 * p.to_local().numel() * 4 for p in parameters)
    # A thread of gloo may free a gathered layer late, which only adds: the least of several is the step's own.
    peaks = [measure_bytes(lambda: trainer.learn(rows, learning_rate=1e-4)).peak for _ in range(4)]
    return {"lasting": lasting, "step": min(peaks)}


def main(directory: Path, rank: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{directory / 'meeting'}",
        rank=rank,
        world_size=2,
        timeout=timedelta(minutes=10),
    )
    ranks = Ranks(rank, 2)
    model = directory / "model"

    def told(**settings: Any) -> TrainerSpec:
        return trainer_spec(model, tokens_per_microbatch=MICROBATCH_TOKENS, **settings)

    spec, each = told(), told(defer_gradient_sync=False)
    found = {
        "loading": loading(spec, ranks),
        "forward": after_the_forward(spec, ranks),
        "step": step_of(spec, ranks),
        "step, each": step_of(each, ranks),
        "step, together": step_of(spec, Ranks(rank, 2, sequence=SequenceRanks(rank, 2))),
        **{name: sent_in_a_step(told(**settings), ranks) for name, settings in SENT.items()},
        "adapter": sent_in_a_step(told(**ADAPTER), ranks),
    }
    (directory / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
