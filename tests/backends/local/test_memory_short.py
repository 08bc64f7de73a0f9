"""The engine goes on with less memory for keys and values where an allocation fails."""

from pathlib import Path
from typing import Any

import pytest
import torch

from areal_sdk.backends.local.core import EngineCore
from areal_sdk.engine import GenerateRequest
from areal_sdk.errors import EngineError
from tests.backends.local.cores import make_core, prompt


def sampled(core: EngineCore) -> list[list[int]]:
    requests = [
        GenerateRequest(prompt(30 + n, n), max_new_tokens=12, ignore_eos=True, seed=n)
        for n in range(4)
    ]
    sequences = [core.add(request) for request in requests]
    while core.has_work:
        core.step()
    return [sequence.output for sequence in sequences]


def failing(core: EngineCore, *steps: int) -> None:
    """Have the forwards of these steps ask for more memory than there is."""
    forward, count = core.model.forward, iter(range(10**6))

    def greedy(*arguments: Any) -> torch.Tensor:
        if next(count) in steps:
            torch.empty(2**60)
        return forward(*arguments)

    core.model.forward = greedy  # type: ignore[method-assign, assignment]


def test_requests_go_on_with_half_of_the_memory_and_sample_what_they_would_have(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain, short = (make_core(checkpoint, dtype="float32", max_context=64) for _ in range(2))
    failing(short, 0, 5)
    assert sampled(short) == sampled(plain)
    first, second = caplog.messages
    assert "0.10 GB for keys and values" in first
    assert "0.05 GB for keys and values" in second
    assert "engine.max_slots = 32" in first
    assert "memory" in first.partition("torch says")[2]


def test_memory_that_cannot_hold_a_request_is_named_with_the_setting_to_lower(
    checkpoint: Path,
) -> None:
    core = make_core(checkpoint, dtype="float32", max_context=64)
    failing(core, *range(100))
    with pytest.raises(EngineError, match=r"request of 64 tokens: lower engine.max_context"):
        sampled(core)
    core.remove_all()
    assert not core.has_work


def test_another_error_of_a_step_is_no_lack_of_memory(checkpoint: Path) -> None:
    core = make_core(checkpoint)
    core.model.forward = lambda *_: torch.zeros(2) @ torch.zeros(3)  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="size"):
        sampled(core)
