"""`deterministic`: a request's result does not depend on its company, to the last bit."""

from pathlib import Path
from random import Random

import pytest
import torch

from areal_sdk.engine import GenerateRequest
from tests.backends.local.cores import make_core, prompt
from tests.backends.local.reference import make_checkpoint, run


@pytest.mark.parametrize(
    ("family", "dtype"), [("qwen3", "float32"), ("qwen3", "bfloat16"), ("qwen3-moe", "float32")]
)
def test_a_request_alone_equals_it_among_others_bit_for_bit(
    tmp_path: Path, family: str, dtype: str
) -> None:
    checkpoint = make_checkpoint(tmp_path, family)
    subject = GenerateRequest(prompt(47), 40, seed=11, ignore_eos=True)
    alone_core = make_core(checkpoint, deterministic=True, dtype=dtype, max_slots=8)
    (alone,) = run(alone_core, alone_core.add(subject))

    shuffle = Random(5)
    for trial in range(4):
        core = make_core(checkpoint, deterministic=True, dtype=dtype, max_slots=8)
        others = [
            GenerateRequest(
                prompt(shuffle.randrange(1, 300), salt=i), 5 + 4 * i, seed=i, ignore_eos=True
            )
            for i in range(9)
        ]
        queue = [*others[: 2 * trial], subject, *others[2 * trial :]]
        sequences = [core.add(request) for request in queue]
        outcome = run(core, *sequences)[queue.index(subject)]
        assert outcome.tokens == alone.tokens
        assert outcome.logprobs == alone.logprobs


def test_scarce_memory_makes_requests_wait_but_changes_no_bit(checkpoint: Path) -> None:
    bytes_per_token = 3 * 2 * 2 * 32 * 4
    requests = [GenerateRequest(prompt(240, salt=i), 60, seed=i, ignore_eos=True) for i in range(5)]
    plenty = make_core(checkpoint, deterministic=True)
    scarce = make_core(
        checkpoint, deterministic=True, kv_memory_gb=2 * 1024 * bytes_per_token / 1e9
    )
    results = [
        [outcome.logprobs for outcome in run(core, *[core.add(request) for request in requests])]
        for core in (plenty, scarce)
    ]
    assert results[0] == results[1]


def test_a_turn_does_not_depend_on_what_was_served_before(checkpoint: Path) -> None:
    subject = GenerateRequest(prompt(300), 20, seed=11, ignore_eos=True)
    fresh, used = (make_core(checkpoint, deterministic=True) for _ in range(2))
    run(used, used.add(GenerateRequest(prompt(280), 30, seed=1, ignore_eos=True)))
    (first,), (second,) = run(fresh, fresh.add(subject)), run(used, used.add(subject))
    assert first.logprobs == second.logprobs


def test_the_logprobs_are_still_those_of_the_model(checkpoint: Path) -> None:
    request = GenerateRequest(prompt(50), 30, seed=1, ignore_eos=True)
    strict, free = make_core(checkpoint, deterministic=True), make_core(checkpoint)
    (a,), (b,) = run(strict, strict.add(request)), run(free, free.add(request))
    assert a.tokens == b.tokens
    torch.testing.assert_close(torch.tensor(a.logprobs), torch.tensor(b.logprobs))
