"""Tokens per second of the local engine against transformers' two ways to generate.

    python benchmarks/engine.py [--model smollm2] [--dtype bfloat16] [--rounds 3] [--top-p 0.95] [--write]

All contenders get the same prompts (no shared prefix, so nothing is reused), sample at temperature
1 over the whole vocabulary unless --top-p cuts it, make the same number of tokens, and use one thread. Ours also returns a
logprob and a version a token; theirs return tokens only. Rounds are interleaved and the medians of
each round's figures are compared, in tokens per CPU-second: on a quiet machine those are tokens per
second, and on a busy one they are still comparable.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tables import table, write_section
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from areal_sdk.backends.local import LocalEngine, LocalOptions
from areal_sdk.backends.local.forward.architecture import Architecture
from areal_sdk.backends.local.forward.linear import Linear, can_pack
from areal_sdk.engine import GenerateRequest, Sampling
from areal_sdk.models import resolve_model

CONCURRENCY = (1, 8, 32)
PROMPT_TOKENS = 63
NEW_TOKENS = 48

Prompts = Sequence[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Contender:
    name: str
    run: Callable[[Prompts], Awaitable[None]]
    cpu_s: Callable[[], float]
    """CPU seconds that everything it needs has used so far."""
    close: Callable[[], None] = lambda: None


def local_engine(engine: LocalEngine, top_p: float) -> Contender:
    sampling = Sampling(top_p=top_p)

    async def run(prompts: Prompts) -> None:
        requests = [
            GenerateRequest(p, NEW_TOKENS, sampling=sampling, ignore_eos=True) for p in prompts
        ]
        results = await asyncio.gather(*map(engine.generate, requests))
        assert all(len(result.tokens) == NEW_TOKENS for result in results)

    return Contender(
        "local engine", run, lambda: time.process_time() + cpu_seconds_of(engine.child.pid)
    )


def generation(top_p: float) -> GenerationConfig:
    """The sampling of transformers, over the whole vocabulary but for top-p."""
    return GenerationConfig(
        max_new_tokens=NEW_TOKENS,
        do_sample=True,
        eos_token_id=-1,
        pad_token_id=0,
        top_k=0,
        top_p=top_p,
    )


def static_generate(model: Any, top_p: float) -> Contender:
    config = generation(top_p)

    async def run(prompts: Prompts) -> None:
        tokens = torch.tensor(prompts)
        with torch.inference_mode():
            output = model.generate(
                tokens, attention_mask=torch.ones_like(tokens), generation_config=config
            )
        assert output.shape == (len(prompts), PROMPT_TOKENS + NEW_TOKENS)

    return Contender("model.generate", run, time.process_time)


def continuous_batching(model: Any, top_p: float) -> Contender:
    manager = model.init_continuous_batching(
        generation_config=generation(top_p),
        continuous_batching_config=ContinuousBatchingConfig(
            num_blocks=64, max_batch_tokens=512, max_requests_per_batch=max(CONCURRENCY)
        ),
    )
    manager.start()

    async def run(prompts: Prompts) -> None:
        manager.add_requests([list(p) for p in prompts], max_new_tokens=NEW_TOKENS)
        for _ in prompts:
            result = manager.get_result(timeout=300)
            assert result is not None, "transformers' continuous batching gave nothing in 300 s"
            assert len(result.generated_tokens) == NEW_TOKENS, result.error

    return Contender(
        "continuous batching", run, time.process_time, lambda: manager.stop(block=True, timeout=60)
    )


def cpu_seconds_of(pid: int) -> float:
    """CPU-seconds of all threads of a process, to the nanosecond."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def make_prompts(count: int, vocab_size: int, generator: random.Random) -> Prompts:
    return [
        tuple(generator.randrange(3, vocab_size) for _ in range(PROMPT_TOKENS))
        for _ in range(count)
    ]


async def measure(
    contenders: Sequence[Contender], vocab_size: int, rounds: int
) -> dict[tuple[str, int], list[float]]:
    """Tokens per CPU-second by contender and concurrency, one figure a round."""
    generator = random.Random(0)
    rates: dict[tuple[str, int], list[float]] = {}
    for round_number in range(rounds + 1):
        for concurrency in CONCURRENCY:
            for contender in contenders:
                prompts = make_prompts(concurrency, vocab_size, generator)
                before, started = contender.cpu_s(), time.perf_counter()
                await contender.run(prompts)
                cpu_s, wall_s = contender.cpu_s() - before, time.perf_counter() - started
                rate = concurrency * NEW_TOKENS / cpu_s
                print(
                    f"round {round_number} {contender.name:>20} x{concurrency:<3}"
                    f"{rate:8.1f} tokens/CPU-s {concurrency * NEW_TOKENS / wall_s:8.1f} tokens/s",
                    flush=True,
                )
                if round_number > 0:  # the first warms up
                    rates.setdefault((contender.name, concurrency), []).append(rate)
    return rates


def limits(architecture: Architecture, dtype: torch.dtype) -> tuple[float, float]:
    """Tokens/s if only reading the weights, or only multiplying by them, took time: measured."""
    cpu = torch.device("cpu")
    size = 8192
    linear = Linear(
        size, 2 * size, has_bias=False, device=cpu, dtype=dtype, packed=can_pack(cpu, dtype)
    )
    linear.load([torch.randn(2 * size, size, dtype=dtype)])

    def seconds(rows: int) -> float:
        x = torch.randn(rows, size, dtype=dtype)
        times = []
        for _ in range(5):
            started = time.process_time()
            linear(x)
            times.append(time.process_time() - started)
        return min(times)

    num_weights = 2 * size * size
    bytes_per_s = num_weights * dtype.itemsize / seconds(1)
    weights_per_s = num_weights * 256 / seconds(256)
    print(f"{bytes_per_s / 1e9:.1f} GB/s, {2 * weights_per_s / 1e9:.0f} GFLOP/s")
    return (
        bytes_per_s / (architecture.num_parameters * dtype.itemsize),
        weights_per_s / architecture.num_parameters,
    )


def comparison(
    rates: dict[tuple[str, int], list[float]], names: Sequence[str], limit: tuple[float, float]
) -> str:
    rows = []
    for concurrency in CONCURRENCY:
        medians = [statistics.median(rates[name, concurrency]) for name in names]
        each_round = zip(*(rates[name, concurrency] for name in names), strict=True)
        ratio = statistics.median(ours / max(theirs) for ours, *theirs in each_round)
        bound = min(limit[0] * concurrency, limit[1])
        kind = "bandwidth" if limit[0] * concurrency < limit[1] else "arithmetic"
        cells = [f"{median:.0f}" for median in medians]
        share = f"{medians[0] / bound:.0%} of {bound:.0f} ({kind})"
        rows.append([concurrency, *cells, f"{ratio:.2f}x", share])
    return table(["concurrency", *names, "to the better", "share of the limit"], rows)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--top-p", type=float, default=1.0, help="of all three engines")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    args = parser.parse_args()
    if args.write and args.top_p < 1.0:
        parser.error(
            "--write publishes the comparison over the whole vocabulary: leave --top-p out"
        )
    torch.set_num_threads(1)
    directory = resolve_model(args.model)
    architecture = Architecture.load(directory)
    dtype = getattr(torch, args.dtype)
    models = [AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval() for _ in range(2)]
    with tempfile.TemporaryDirectory() as log_dir:
        engine = LocalEngine(
            directory, log_dir=Path(log_dir), options=LocalOptions(dtype=args.dtype, device="cpu")
        )
        await engine.start()
        contenders = [
            local_engine(engine, args.top_p),
            static_generate(models[0], args.top_p),
            continuous_batching(models[1], args.top_p),
        ]
        rates = await measure(contenders, architecture.vocab_size, args.rounds)
        await engine.aclose()
        for contender in contenders:
            contender.close()
    text = comparison(rates, [c.name for c in contenders], limits(architecture, dtype))
    print(text)
    if args.write:
        command = f"python benchmarks/engine.py --model {args.model} --dtype {args.dtype} --rounds {args.rounds} --write"
        title = f"## Engine: {args.model}, {args.dtype}, one thread, tokens per CPU-second"
        note = (
            f"`{command}`, torch {torch.__version__}. Prompts have {PROMPT_TOKENS} tokens, answers "
            f"{NEW_TOKENS}; the figures include the prefill. Each is the median of {args.rounds} "
            'interleaved rounds. "To the better" is the local engine\'s rate divided by that of the '
            'better of the other two; "share of the limit" compares the rate with what memory '
            "bandwidth or arithmetic allow."
        )
        write_section(f"engine-{args.model}", f"{title}\n\n{note}\n\n{text}")


if __name__ == "__main__":
    asyncio.run(main())
