"""Logprobs of sampled tokens by a plain transformers forward, under the version that each token
names."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from areal_sdk.engine import GenerateResult


def worst_error(
    prompt: Sequence[int],
    result: GenerateResult,
    checkpoint_of: Sequence[Path],
    *,
    temperature: float = 1.0,
) -> float:
    """The largest |recorded - re-scored| logprob of the output."""
    errors = [0.0]
    sequence = torch.tensor([[*prompt, *result.tokens]])
    for version in set(result.versions):
        model = AutoModelForCausalLM.from_pretrained(checkpoint_of[version], dtype=torch.float32)
        with torch.inference_mode():
            logits = model(sequence).logits[0, len(prompt) - 1 : -1] / temperature
        logprobs = torch.log_softmax(logits, dim=-1)
        errors += [
            abs(float(logprobs[index, token]) - recorded)
            for index, (token, recorded, named) in enumerate(
                zip(result.tokens, result.logprobs, result.versions, strict=True)
            )
            if named == version
        ]
    return max(errors)
