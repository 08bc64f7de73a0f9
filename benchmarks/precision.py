"""The price of float32 where bfloat16 rounds: attention scores, and the output layer.

python benchmarks/precision.py [--rounds 6] [--write]

One forward and backward of SmolLM2 over a row of shared prompts, on one thread; the variants take
turns, and the medians of their ratios in the same round are printed. Two rows: one where most tokens
are trained, one where few are. The error is that of the trainer's logprobs against a float32 model's.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from tables import table, write_section
from torch import Tensor

from areal_sdk.algorithms.batch import Batch, make_batch
from areal_sdk.algorithms.examples import make_demonstration
from areal_sdk.algorithms.packing import plan_rows
from areal_sdk.fsdp.kernels import tree_attention
from areal_sdk.fsdp.policy import Policy, load_policy
from areal_sdk.models import resolve_model

PROMPTS, SIBLINGS, PROMPT_TOKENS = 2, 4, 100
COMMON_TOKENS = 10_000
"""Sampled ids are below this: rare tokens are not what a run reads."""
exact_scores = tree_attention._scores


def rounded_scores(q_KQD: Tensor, k_KCD: Tensor, scaling: float) -> Tensor:
    return torch.bmm(q_KQD * scaling, k_KCD.transpose(1, 2))


@dataclass(frozen=True, slots=True)
class Variant:
    name: str
    scores: Callable[[Tensor, Tensor, float], Tensor]
    exact_head: bool


VARIANTS = (
    Variant("bfloat16 scores, bfloat16 output layer", rounded_scores, exact_head=False),
    Variant("float32 scores (the default)", exact_scores, exact_head=False),
    Variant("float32 scores, float32 output layer", exact_scores, exact_head=True),
)


def make_row(answer_tokens: int) -> Batch:
    rng = np.random.default_rng(0)
    examples = []
    for _ in range(PROMPTS):
        prompt = rng.integers(100, COMMON_TOKENS, PROMPT_TOKENS).tolist()
        for _ in range(SIBLINGS):
            answer = rng.integers(100, COMMON_TOKENS, answer_tokens).tolist()
            mask = [False] * len(prompt) + [True] * len(answer)
            example = make_demonstration([*prompt, *answer], mask)
            assert example is not None
            examples.append(example)
    [[trees]] = plan_rows([example.inputs for example in examples], max_tokens=4096)
    return make_batch(trees, examples, version=0)


def run(policy: Policy, batch: Batch, variant: Variant) -> tuple[float, Tensor]:
    tree_attention._scores = variant.scores  # type: ignore[assignment]
    policy.head.is_exact = variant.exact_head
    began = time.process_time()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logprobs_T, *_ = policy(batch)
    logprobs_T.sum().backward()
    took_s = time.process_time() - began
    policy.zero_grad(set_to_none=True)
    return took_s, logprobs_T.detach()


def measure(policy: Policy, answer_tokens: int, rounds: int) -> list[list[str]]:
    batch = make_row(answer_tokens)
    with torch.no_grad():
        exact_T, *_ = policy(batch)
    seconds: dict[str, list[float]] = {variant.name: [] for variant in VARIANTS}
    errors: dict[str, float] = {}
    for number in range(rounds + 1):
        for variant in VARIANTS:
            took_s, logprobs_T = run(policy, batch, variant)
            errors[variant.name] = float((logprobs_T - exact_T).abs().mean())
            if number:  # the first round warms up
                seconds[variant.name].append(took_s)
    plain = seconds[VARIANTS[0].name]
    what = f"{len(batch.targets_T)} of {len(batch.tokens_N)}"
    rows = []
    for name, values in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(values, plain, strict=True))
        rows.append([what, name, f"{errors[name]:.4f}", f"{ratio:.2f}x"])
        print("  ".join(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    policy = load_policy(resolve_model("smollm2"))
    rows = [row for length in (8, 40) for row in measure(policy, length, options.rounds)]
    text = table(["tokens trained of the row", "float32 where", "mean error", "CPU time"], rows)
    if options.write:
        intro = (
            "## The price of float32\n\n`python benchmarks/precision.py --write`: SmolLM2, one step "
            "of one row on one thread. The error is the mean absolute difference of the trainer's "
            "logprobs from a float32 model's. CPU time is the median ratio to the first line of the "
            "same row."
        )
        write_section("precision", f"{intro}\n\n{text}")


if __name__ == "__main__":
    main()
