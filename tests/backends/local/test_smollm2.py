"""A real model in bfloat16. Needs the cached or downloadable `smollm2` checkpoint."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from areal_sdk.backends.local import LocalOptions
from areal_sdk.backends.local.core import EngineCore
from areal_sdk.engine import GenerateRequest, Sampling
from areal_sdk.models import resolve_model
from tests.backends.local.reference import run

pytestmark = pytest.mark.slow

QUESTIONS = ["What is the capital of France?", "Write one sentence about the sea.", "Count to ten."]


@pytest.fixture(scope="module")
def directory() -> Path:
    return resolve_model("smollm2")


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


@pytest.fixture(scope="module")
def core(directory: Path) -> EngineCore:
    return EngineCore(directory, LocalOptions(dtype="bfloat16", device="cpu", kv_memory_gb=1.0))


def chat(tokenizer: Tokenizer, question: str) -> tuple[int, ...]:
    text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    return tuple(tokenizer.encode(text, add_special_tokens=False).ids)


def test_it_says_something_sane(core: EngineCore, tokenizer: Tokenizer) -> None:
    request = GenerateRequest(
        chat(tokenizer, QUESTIONS[0]), 20, Sampling(temperature=0.0), stop=("Paris",)
    )
    (outcome,) = run(core, core.add(request))
    assert tokenizer.decode(outcome.tokens) == "The capital of France is Paris"
    assert outcome.last is not None
    assert outcome.last.finish is not None
    assert outcome.last.finish.matched == "Paris"


def test_bfloat16_noise_is_that_of_transformers(
    core: EngineCore, tokenizer: Tokenizer, directory: Path
) -> None:
    prompts = [chat(tokenizer, question) for question in QUESTIONS]
    requests = [
        GenerateRequest(prompt, 64, seed=seed, ignore_eos=True)
        for prompt in prompts
        for seed in range(4)
    ]
    outcomes = run(core, *[core.add(request) for request in requests])
    models = [
        AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()
        for dtype in (torch.float32, torch.bfloat16)
    ]
    errors: list[list[torch.Tensor]] = [[], []]
    for request, outcome in zip(requests, outcomes, strict=True):
        tokens = torch.tensor([[*request.tokens, *outcome.tokens]])
        chosen = torch.tensor(outcome.tokens)[:, None]
        with torch.inference_mode():
            exact, theirs = (
                model(tokens)
                .logits[0]
                .float()
                .log_softmax(-1)[len(request.tokens) - 1 : -1]
                .gather(1, chosen)
                .squeeze(1)
                for model in models
            )
        errors[0].append((torch.tensor(outcome.logprobs) - exact).abs())
        errors[1].append((theirs - exact).abs())
    ours, theirs = (torch.cat(e) for e in errors)
    assert ours.mean() < 1.15 * theirs.mean()
    assert ours.quantile(0.99) < 1.5 * theirs.quantile(0.99)
