"""How often a step asks the device and waits for it: a step that gets slower on a GPU fails here, and names its lines.

A count that falls is good news: lower the figure.
"""

from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from areal_sdk.fsdp.collectives import Ranks
from areal_sdk.fsdp.kernels import head
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from tests.fsdp.episodes import make_groups
from tests.fsdp.specs import changed, trainer_spec, with_preset
from tests.pretended import Seen, watch
from tests.pretended.engines import core_on, mixed_requests, plain_requests

LAYERS = 2
PLAIN_LAUNCHES = 83
MIXED_LAUNCHES = 136
"""Launches of a decoding step of two layers: eight plain requests, and five that restrict their choice."""
MICROBATCH_LAUNCHES = 676
"""Launches of forward, loss, backward and record of one micro-batch of two layers."""


@pytest.mark.parametrize(
    ("kind", "launches"), [("plain", PLAIN_LAUNCHES), ("mixed", MIXED_LAUNCHES)]
)
def test_a_decoding_step_waits_once(
    device: torch.device, dense_dir: Path, kind: str, launches: int
) -> None:
    core = core_on(device, dense_dir)
    for request in plain_requests(8) if kind == "plain" else mixed_requests():
        core.add(request)
    core.step()
    with watch() as seen:
        core.step()
    assert seen.num_waits == 1, seen.report()
    assert seen.num_launches <= launches, seen.report()


def test_a_sum_over_ranks_waits_once(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """For its result. This device has no collective, so the sum is left out."""
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, **_: tensor)
    with watch() as seen:
        assert Ranks(size=2, device=device).sum({"a": 1.0, "b": 2.0}) == {"a": 1.0, "b": 2.0}
    assert seen.num_waits == 1, seen.report()


def test_a_mixture_also_waits_once_a_layer(device: torch.device, served_mixture_dir: Path) -> None:
    """Which experts are needed decides what is launched."""
    core = core_on(device, served_mixture_dir)
    for request in plain_requests(8):
        core.add(request)
    core.step()
    with watch() as seen:
        core.step()
    assert seen.num_waits == 1 + core.architecture.num_layers, seen.report()


@pytest.fixture
def spec(dense_dir: Path) -> TrainerSpec:
    """A micro-batch has one group."""
    return trainer_spec(
        dense_dir, precision="float32", warmup_steps=0, trust_region=0.0, tokens_per_microbatch=100
    )


def counted(spec: TrainerSpec, device: torch.device, *, num_groups: int) -> Seen:
    trainer = RankTrainer(spec, Ranks(device=device))
    groups = make_groups(num_groups)
    trainer.step(groups[:1], version=0)  # what is tried and made once
    with watch() as seen:
        trainer.step(groups, version=0)
    return seen


FEW, MANY = 7, 9
"""Groups of two steps that are measured by samples of the same size."""


@pytest.mark.parametrize("preset", ["grpo", "gspo", "ppo"])
def test_micro_batches_do_not_wait(spec: TrainerSpec, device: torch.device, preset: str) -> None:
    spec = with_preset(spec, preset)
    few, many = (counted(spec, device, num_groups=count) for count in (FEW, MANY))
    assert few.num_waits == many.num_waits, many.report()
    assert few.num_waits <= 8, few.report()
    if preset == "grpo":
        launches = (many.num_launches - few.num_launches) / (MANY - FEW)
        assert launches <= MICROBATCH_LAUNCHES, many.report()


def test_a_large_vocabulary_costs_one_wait_a_micro_batch(
    spec: TrainerSpec, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the rows of a micro-batch are computed in pieces, the terms of each piece are looked up."""
    monkeypatch.setattr(head, "PIECE_ELEMENTS", 2**12)
    few, many = (counted(spec, device, num_groups=count) for count in (FEW, MANY))
    assert many.num_waits - few.num_waits == MANY - FEW, many.report()


def test_an_update_that_is_held_back_waits_a_few_times(
    spec: TrainerSpec, device: torch.device
) -> None:
    """Once for each scale that is tried, however many parameters there are."""
    held = changed(spec, trust_region=1e-6, learning_rate=1e-2)
    seen = counted(held, device, num_groups=FEW)
    scaled = Counter(
        {p: n for p, n in seen.places("read").items() if "trust_region" in p}  # type: ignore[arg-type]
    )
    assert 1 <= scaled.total() <= 9, seen.report()
