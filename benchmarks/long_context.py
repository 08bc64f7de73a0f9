"""The cost of one long sequence on a rank: the output layer in chunks, checkpointing, and two
ranks.

    python benchmarks/long_context.py [--tokens 32768] [--write]

One sequence of random tokens, all of them trained, with the tiny model (0.36 M parameters, float32) and a
vocabulary of its own size. Bytes are those that torch allocates in an update beyond weights and moments, at
their peak, and CPU-seconds those of the update; each case is a process of its own. `transformers` is the
model's own forward with sdpa attention and whole logits, cross entropy and backward, without an optimiser.
The numbers of two ranks are those of the busiest.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tables import table, write_section
from transformers import AutoModelForCausalLM

from areal_sdk.config import TrainerSection
from areal_sdk.fsdp.collectives import Ranks
from areal_sdk.fsdp.kernels.sequence_ranks import SequenceRanks
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.models.tiny import make_tiny_model
from areal_sdk.trainer import Demonstration
from tests.toolbox.measured_memory import measure_bytes

FULL = {"activation_checkpointing": "full"}
TOGETHER = {"ranks": 2, "sequence_ranks": 2}
CASES: dict[str, dict[str, Any] | None] = {
    "transformers": None,
    "the trainer": {},
    "with checkpointing": FULL,
    "on two ranks (`sequence_ranks = 2`)": TOGETHER,
    "on two ranks, with checkpointing": {**TOGETHER, **FULL},
}


def main() -> None:
    parser = argparse.ArgumentParser(description="The memory of one long sequence.")
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--write", action="store_true", help="the table in docs/benchmarks.md")
    parser.add_argument("--case", help="one case, in this process")
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--rank", type=int, default=0)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(CASES[options.case], options)))
        return
    rows = []
    for name, settings in CASES.items():
        found = run(name, (settings or {}).get("ranks", 1), options.tokens)
        peak, seconds = (max(part[key] for part in found) for key in ("peak", "cpu_s"))
        rows.append(
            (name, f"{peak / 2**20:,.0f}", f"{peak / options.tokens:,.0f}", f"{seconds:.0f}")
        )
        print(*rows[-1], flush=True)
    header = ("", "peak, MiB", "bytes a token", "CPU-s of a rank")
    text = table(header, rows)
    print(text)
    if options.write:
        command = f"`python benchmarks/long_context.py --tokens {options.tokens} --write`"
        about = (
            f"{command}: an update on one sequence of {options.tokens} tokens, all of them trained, with "
            "the tiny model in float32. The peak is that of the update, without weights and moments. The "
            "vocabulary has 263 tokens, so whole logits are small here. The trainer computes attention once more "
            "in the backward pass, instead of keeping its output."
        )
        write_section("long-context", f"## One long sequence\n\n{about}\n\n{text}")


def run(name: str, ranks: int, num_tokens: int) -> list[dict[str, float]]:
    with tempfile.TemporaryDirectory() as scratch:
        make_tiny_model(Path(scratch) / "model", max_context=2 * num_tokens)
        command = [sys.executable, __file__, "--tokens", str(num_tokens), "--case", name]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        started = [
            subprocess.Popen(
                [*command, "--directory", scratch, "--rank", str(rank)],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]
        outputs = [process.communicate()[0] for process in started]
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def measure(settings: dict[str, Any] | None, options: argparse.Namespace) -> dict[str, float]:
    torch.set_num_threads(1)
    model_dir = options.directory / "model"
    tokens = np.random.default_rng(0).integers(0, 250, options.tokens + 1).tolist()
    update = (
        plain(model_dir, tokens)
        if settings is None
        else trained(model_dir, tokens, settings, options)
    )
    began = time.process_time()
    peak = measure_bytes(update).peak
    return {"peak": peak, "cpu_s": time.process_time() - began}


def plain(model_dir: Path, tokens: list[int]) -> Callable[[], object]:
    model = AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=torch.float32, attn_implementation="sdpa"
    )
    ids = torch.tensor([tokens])

    def update() -> None:
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits[0]
        loss = torch.nn.functional.cross_entropy(logits, ids[0, 1:])
        loss.backward()  # type: ignore[no-untyped-call]

    return update


def trained(
    model_dir: Path, tokens: list[int], settings: dict[str, Any], options: argparse.Namespace
) -> Callable[[], object]:
    section = TrainerSection(
        precision="float32", device="cpu", tokens_per_microbatch=options.tokens, **settings
    )
    ranks = Ranks()
    if section.ranks > 1:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{options.directory / 'meeting'}",
            rank=options.rank,
            world_size=section.ranks,
        )
        ranks = Ranks(
            options.rank, section.ranks, sequence=SequenceRanks(options.rank, section.ranks)
        )
    trainer = RankTrainer(TrainerSpec(model_dir, trainer=section), ranks)
    # What is made once: the optimiser's moments.
    trainer.learn([Demonstration((1, 2, 3), (False, True, True))], learning_rate=1e-4)
    row = Demonstration(tuple(tokens), (False,) + (True,) * options.tokens)
    return lambda: trainer.learn([row], learning_rate=1e-4)


if __name__ == "__main__":
    main()
