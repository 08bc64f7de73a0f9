"""The embedded engine on a device that is not the CPU: the same tokens and logprobs, and no tensor on the wrong one."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from areal_sdk.backends.local.forward.checkpoint import open_weights
from areal_sdk.engine import Sampling
from tests.backends.local.reference import Outcome, nudge, run
from tests.pretended.engines import core_on, mixed_requests, request

CPU = torch.device("cpu")


def assert_same(mine: Sequence[Outcome], theirs: Sequence[Outcome]) -> None:
    for one, other in zip(mine, theirs, strict=True):
        assert one.tokens == other.tokens
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


@pytest.mark.parametrize("kind", ["dense", "mixture"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_every_kind_of_sampling_in_one_batch(
    device: torch.device,
    dense_dir: Path,
    served_mixture_dir: Path,
    kind: str,
    deterministic: bool,
) -> None:
    model_dir = dense_dir if kind == "dense" else served_mixture_dir

    def sampled(device: torch.device) -> list[Outcome]:
        core = core_on(device, model_dir, deterministic=deterministic, max_slots=6)
        return run(core, *map(core.add, mixed_requests()))

    assert_same(sampled(CPU), sampled(device))


def test_a_shared_prefix_is_copied_on_the_device(device: torch.device, dense_dir: Path) -> None:
    """From a row that runs, and from one that is idle."""

    def sampled(device: torch.device) -> list[Outcome]:
        core = core_on(device, dense_dir)
        first = core.add(request(Sampling(), length=200))
        core.step()
        beside = core.add(request(Sampling(temperature=0.0), length=200))
        outcomes = run(core, first, beside)
        later = core.add(request(Sampling(temperature=0.0), length=200))
        outcomes += run(core, later)
        assert beside.num_cached > 0
        assert later.num_cached > 0
        return outcomes

    assert_same(sampled(CPU), sampled(device))


@pytest.mark.parametrize("kv_on_update", ["recompute", "keep"])
def test_new_weights_reach_the_device_while_requests_run(
    device: torch.device, dense_dir: Path, tmp_path: Path, kv_on_update: str
) -> None:
    update = nudge(dense_dir, tmp_path / "v1.safetensors")

    def sampled(device: torch.device) -> list[Outcome]:
        core = core_on(device, dense_dir, kv_on_update=kv_on_update)
        sequences = [core.add(r) for r in mixed_requests()]
        for _ in range(4):
            core.step()
        core.update_weights(1, open_weights(update, core.architecture))
        outcomes = run(core, *sequences)
        assert {version for outcome in outcomes for version in outcome.versions} == {1}
        return outcomes

    assert_same(sampled(CPU), sampled(device))
