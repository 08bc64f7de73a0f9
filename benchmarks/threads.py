"""Seconds of the local engine and of a trainer's step with one thread and with more.

    python benchmarks/threads.py [--model smollm2] [--dtype float32] [--threads 1 2] [--rounds 3] [--write]

The engine answers 1, 8 and 32 prompts of 63 tokens with 48 tokens each, as in engine.py. The step is that of train_step.py
on groups that are alike. The numbers of threads take turns, and medians are compared. Run it on a quiet machine: an operation waits for the
slowest of its threads, so the figures say what cores bring that are idle.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
from engine import CONCURRENCY, NEW_TOKENS, local_engine, make_prompts
from tables import table, write_section
from train_step import Ours, alike

from areal_sdk.backends.local import LocalEngine, LocalOptions
from areal_sdk.backends.local.forward.architecture import Architecture
from areal_sdk.models import resolve_model

Dtype = Literal["bfloat16", "float32"]
Seconds = Mapping[tuple[str, int], Sequence[float]]
"""Wall seconds, by what was done and the number of threads."""


async def time_engine(
    model: Path, dtype: Dtype, counts: Sequence[int], rounds: int
) -> dict[tuple[str, int], list[float]]:
    """An engine for each number of threads; each answers the same prompts."""
    vocab_size = Architecture.load(model).vocab_size
    found: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as logs:
        engines = {
            count: LocalEngine(
                model,
                log_dir=Path(logs) / str(count),
                options=LocalOptions(dtype=dtype, device="cpu", threads=count),
            )
            for count in counts
        }
        for engine in engines.values():
            await engine.start()
        generator = random.Random(0)
        for round_number in range(rounds + 1):
            for concurrency in CONCURRENCY:
                for count, engine in engines.items():
                    prompts = make_prompts(concurrency, vocab_size, generator)
                    began = time.perf_counter()
                    await local_engine(engine, 1.0).run(prompts)
                    took_s = time.perf_counter() - began
                    if round_number > 0:  # the first warms up
                        what = f"{concurrency} x {NEW_TOKENS} tokens"
                        found.setdefault((what, count), []).append(took_s)
        for engine in engines.values():
            await engine.aclose()
    return found


def time_step(
    model: Path, precision: Dtype, counts: Sequence[int], rounds: int
) -> dict[tuple[str, int], list[float]]:
    step = Ours(model, alike(model), precision=precision)
    found: dict[tuple[str, int], list[float]] = {}
    for round_number in range(rounds + 1):
        for count in counts:
            torch.set_num_threads(count)
            began = time.perf_counter()
            step()
            if round_number > 0:
                found.setdefault(("a trainer's step", count), []).append(
                    time.perf_counter() - began
                )
    torch.set_num_threads(1)
    return found


def page(seconds: Seconds, counts: Sequence[int]) -> str:
    rows = []
    for what in dict.fromkeys(what for what, _ in seconds):
        medians = [statistics.median(seconds[what, count]) for count in counts]
        faster = [f"{medians[0] / median:.2f}x" for median in medians[1:]]
        rows.append([what, *(f"{median:.2f}" for median in medians), *faster])
    named = [f"{count} thread{'s' * (count > 1)}" for count in counts]
    return table(
        ["", *(f"s, {one}" for one in named), *(f"{one}, faster" for one in named[1:])], rows
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="float32", choices=["bfloat16", "float32"])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = resolve_model(given.model)
    seconds = {
        **asyncio.run(time_engine(model, given.dtype, given.threads, given.rounds)),
        **time_step(model, given.dtype, given.threads, given.rounds),
    }
    text = page(seconds, given.threads)
    print(text)
    if given.write:
        counts = " ".join(map(str, given.threads))
        command = f"python benchmarks/threads.py --model {given.model} --dtype {given.dtype} --threads {counts} --rounds {given.rounds} --write"
        note = (
            f"`{command}`, torch {torch.__version__}. Engine: prompts of 63 tokens, prefill included. Step: 32 sequences "
            f"that share 4 prompts. Medians of {given.rounds} rounds in turns."
        )
        title = f"## More threads a process: {given.model}, {given.dtype}"
        write_section("threads", f"{title}\n\n{note}\n\n{text}")


if __name__ == "__main__":
    main()
