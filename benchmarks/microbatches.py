"""Micro-batches by a budget of tokens, as the trainer packs them, against a fixed number of sequences.

python benchmarks/microbatches.py [--rounds 5] [--write]

The same work in four layouts: forward and backward over 64 trajectories, 8 siblings for each of 8
prompts of 40 tokens. Answer lengths are log-normal (median 60, at most 984 tokens), as those of a
reasoning model are: few are long. All layouts stay below the same 1,024 tokens at once, or 4,096. A
fixed number of sequences must fit even if all of them are as long as the longest, so that number is the
budget divided by the longest. The layouts take turns, on one thread.

fixed, padded    a fixed number of sequences, each as long as the longest of its micro-batch
fixed            the same without padding
dynamic          packed by tokens: first fit, longest first
dynamic, shared  the same with shared prompts computed once: the trainer's default
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import transformers
from tables import table, write_section

from areal_sdk.algorithms.batch import Batch, make_batch
from areal_sdk.algorithms.examples import Example, make_demonstration
from areal_sdk.algorithms.packing import Segment, Tree, build_trees, plan_rows
from areal_sdk.fsdp.policy import Policy, load_policy
from areal_sdk.models.tiny import make_tiny_model

BUDGETS = (1024, 4096)
PROMPTS, SIBLINGS, PROMPT_TOKENS = 8, 8, 40
MEDIAN_ANSWER, SPREAD, LONGEST_ANSWER = 60, 1.0, 984
Rows = list[list[Tree]]
"""The trees of each micro-batch."""


def make_examples() -> list[Example]:
    rng = np.random.default_rng(0)
    examples = []
    for _ in range(PROMPTS):
        prompt = rng.integers(0, 256, PROMPT_TOKENS).tolist()
        for _ in range(SIBLINGS):
            length = int(MEDIAN_ANSWER * np.exp(SPREAD * rng.standard_normal()))
            answer = rng.integers(0, 256, min(max(length, 1), LONGEST_ANSWER)).tolist()
            mask = [False] * len(prompt) + [True] * len(answer)
            example = make_demonstration([*prompt, *answer], mask)
            assert example is not None
            examples.append(example)
    return examples


def dynamic(examples: Sequence[Example], budget: int) -> Rows:
    return plan_rows([example.inputs for example in examples], max_tokens=budget, share=False)[0]


def shared(examples: Sequence[Example], budget: int) -> Rows:
    return plan_rows([example.inputs for example in examples], max_tokens=budget)[0]


def fixed(examples: Sequence[Example], budget: int) -> Rows:
    trees = build_trees([e.inputs for e in examples], max_tokens=budget, share=False)
    number = max(1, budget // max(map(len, trees)))
    return [trees[start : start + number] for start in range(0, len(trees), number)]


def padded(examples: Sequence[Example], budget: int) -> Rows:
    rows = fixed(examples, budget)
    return [[pad(tree, max(map(len, row))) for tree in row] for row in rows]


def pad(tree: Tree, length: int) -> Tree:
    """The same sequence, followed by tokens that nothing reads."""
    tokens = np.zeros(length, dtype=np.int64)
    tokens[: len(tree)] = tree.tokens
    return Tree((Segment(0, length, length, -1),), tree.members, tree.ends, (tokens,), (0,))


LAYOUTS: dict[str, Callable[[Sequence[Example], int], Rows]] = {
    "fixed, padded": padded,
    "fixed": fixed,
    "dynamic": dynamic,
    "dynamic, shared": shared,
}


def run(policy: Policy, batches: Sequence[Batch]) -> float:
    """CPU-seconds of forward and backward over all micro-batches."""
    began = time.process_time()
    for batch in batches:
        logprobs_T, *_ = policy(batch)
        (-logprobs_T.sum()).backward()
    took_s = time.process_time() - began
    policy.zero_grad(set_to_none=True)
    return took_s


def measure(policy: Policy, budget: int, rounds: int) -> list[tuple[str, ...]]:
    examples = make_examples()
    layouts = {
        layout: [make_batch(row, examples, version=0) for row in rows_of(examples, budget)]
        for layout, rows_of in LAYOUTS.items()
    }
    seconds: dict[str, list[float]] = {layout: [] for layout in layouts}
    for number in range(rounds + 1):
        for layout, batches in layouts.items():
            took_s = run(policy, batches)
            if number:  # the first round warms up
                seconds[layout].append(took_s)
    num_tokens = sum(len(example.inputs) for example in examples)
    rows: list[tuple[str, ...]] = []
    for layout, batches in layouts.items():
        took_s = statistics.median(seconds[layout])
        pairs = zip(seconds["fixed"], seconds[layout], strict=True)
        rows.append(
            (
                f"{budget}",
                layout,
                f"{len(batches)}",
                f"{sum(len(batch.tokens_N) for batch in batches)}",
                f"{took_s:.2f}",
                f"{num_tokens / took_s:.0f}",
                f"{statistics.median(a / b for a, b in pairs):.2f}x",
            )
        )
        print("  ".join(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory() as directory:
        policy = load_policy(make_tiny_model(Path(directory)))
    for budget in BUDGETS:
        rows += measure(policy, budget, options.rounds)
    header = (
        "tokens at once",
        "layout",
        "micro-batches",
        "tokens computed",
        "CPU-s a step",
        "tokens/CPU-s",
        "to fixed",
    )
    if options.write:
        write_section(
            "microbatches",
            "## Dynamic against fixed micro-batches\n\n"
            f"`python benchmarks/microbatches.py --rounds {options.rounds} --write`: forward and "
            "backward over the same 64 trajectories of mixed lengths, with the tiny model (0.36 M parameters), float32, one thread. "
            f"CPU-seconds are medians of {options.rounds} interleaved rounds. Tokens/CPU-s count the "
            'tokens of the trajectories, not the padding. "To fixed" is the median over the rounds of '
            "the CPU time of `fixed` divided by that of the layout. The docstring of the program "
            "describes the layouts.\n\n" + table(header, rows),
        )


if __name__ == "__main__":
    main()
