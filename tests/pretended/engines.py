"""Cores of the engine on a device, and requests of every kind of sampling."""

from pathlib import Path

import torch

from areal_sdk.backends.local import LocalOptions
from areal_sdk.backends.local.core import EngineCore
from areal_sdk.engine import GenerateRequest, Sampling
from tests.backends.local.cores import prompt

SAMPLINGS = {
    "greedy": Sampling(temperature=0.0),
    "plain": Sampling(),
    "tail": Sampling(temperature=0.7, top_p=0.9, top_k=20, min_p=0.01),
    "penalties": Sampling(repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.5),
    "bias": Sampling(logit_bias={3: 2.0}),
}


def core_on(device: torch.device, model_dir: Path, **options: object) -> EngineCore:
    plain = LocalOptions(kv_memory_gb=0.1, dtype="float32", **options)  # type: ignore[arg-type]
    return EngineCore(model_dir, plain.model_copy(update={"device": str(device)}))


def request(sampling: Sampling, *, number: int = 0, length: int = 20) -> GenerateRequest:
    return GenerateRequest(
        tokens=tuple(token % 250 for token in prompt(length, number)),
        max_new_tokens=12,
        seed=number,
        ignore_eos=True,
        num_top_logprobs=2 if number == 1 else 0,
        sampling=sampling,
    )


def mixed_requests() -> list[GenerateRequest]:
    """One of each kind, of different lengths."""
    return [
        request(sampling, number=number, length=20 + 7 * number)
        for number, sampling in enumerate(SAMPLINGS.values())
    ]


def plain_requests(count: int) -> list[GenerateRequest]:
    """Requests without a restriction."""
    return [request(Sampling(), number=2 + number) for number in range(count)]
