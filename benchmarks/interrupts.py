"""Generated tokens per second under continuous updates: three ways to swap weights in flight.

    python benchmarks/interrupts.py [--rounds 3] [--seconds 30] [--write]

One SGLang server of the tiny model on the CPU, sixteen requests always in flight whose lengths are
long-tailed (log-normal, median 250, clipped to 16 .. 3000), a new checkpoint every 5 s. `drain` waits
for the requests in flight and lets nothing new start meanwhile, as a synchronous trainer does;
`abort` drops them and continues from prompt and partial output; `retract` has the server do that.
Tokens count when they arrive, in the same window of wall-clock time. Rounds are interleaved; the
medians of per-round ratios are compared, since a shared machine is never the same twice.
"""

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tables import table, write_section

from areal_sdk.backends.remote.options import ServerLimits
from areal_sdk.engine import GenerateRequest
from areal_sdk.errors import ConfigError
from areal_sdk.models import make_tiny_model
from areal_sdk.types import WeightUpdate
from areal_sdk_sglang.engine import SGLangEngine
from areal_sdk_sglang.install import find_environment
from areal_sdk_sglang.servers import SGLangLauncher
from areal_sdk_sglang.settings import SGLangSection

Mode = Literal["retract", "abort", "drain"]
MODES: tuple[Mode, ...] = ("retract", "abort", "drain")
NUM_IN_FLIGHT = 16
UPDATE_EVERY_S = 5.0
PROMPT = tuple(b"Once upon a time")


class Load:
    """Requests that never cease, and a count of the tokens that came."""

    def __init__(self, engine: SGLangEngine, seed: int) -> None:
        self._engine = engine
        self._lengths = random.Random(seed)
        self.num_tokens = 0

    async def one_after_another(self) -> None:
        while True:
            length = int(min(3000, max(16, self._lengths.lognormvariate(5.52, 1.0))))
            async for chunk in self._engine.stream(
                GenerateRequest(PROMPT, length, ignore_eos=True)
            ):
                self.num_tokens += len(chunk.tokens)


async def tokens_per_second(
    address: str, checkpoints: Sequence[Path], mode: Mode, *, seconds: float, seed: int, logs: Path
) -> tuple[float, int]:
    """The rate after the first update, and how many updates were made."""
    engine = SGLangEngine(
        checkpoints[0],
        [address],
        log_dir=logs,
        settings=SGLangSection(interrupt=mode),
        limits=ServerLimits(connect_timeout_s=600.0),
    )
    await engine.start()
    try:
        version = 1
        await engine.update_weights(update(checkpoints, version))
        load = Load(engine, seed)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(load.one_after_another()) for _ in range(NUM_IN_FLIGHT)]
            await asyncio.sleep(2.0)
            began, before = time.monotonic(), load.num_tokens
            while time.monotonic() - began < seconds:
                cycle = time.monotonic()
                version += 1
                await engine.update_weights(update(checkpoints, version))
                await asyncio.sleep(max(0.0, UPDATE_EVERY_S - (time.monotonic() - cycle)))
            rate = (load.num_tokens - before) / (time.monotonic() - began)
            for task in tasks:
                task.cancel()
        return rate, version - 1
    finally:
        await engine.aclose()


def update(checkpoints: Sequence[Path], version: int) -> WeightUpdate:
    return WeightUpdate(version, str(checkpoints[version % len(checkpoints)] / "model.safetensors"))


async def main(rounds: int, seconds: float, write: bool) -> None:
    with tempfile.TemporaryDirectory() as root:
        logs = Path(root)
        checkpoints = [make_tiny_model(logs / str(seed), seed=seed) for seed in range(2)]
        launcher = SGLangLauncher(checkpoints[0], find_environment(), logs)
        (server,) = await launcher.start_all()
        rates: dict[Mode, list[float]] = {mode: [] for mode in MODES}
        updates: dict[Mode, int] = dict.fromkeys(MODES, 0)
        try:
            for index in range(rounds):
                order = MODES[index % 3 :] + MODES[: index % 3]
                for mode in order:
                    rate, count = await tokens_per_second(
                        server.address, checkpoints, mode, seconds=seconds, seed=index, logs=logs
                    )
                    rates[mode].append(rate)
                    updates[mode] += count
                    print(f"round {index} {mode}: {rate:.0f} tokens/s, {count} updates", flush=True)
        finally:
            await server.stop()
    rows = []
    for mode in MODES:
        ratios = [ours / drain for ours, drain in zip(rates[mode], rates["drain"], strict=True)]
        rows.append(
            [
                mode,
                f"{statistics.median(rates[mode]):.0f}",
                f"{min(ratios):.2f} / {statistics.median(ratios):.2f} / {max(ratios):.2f}",
                updates[mode],
            ]
        )
    text = (
        "## Interrupting generation for new weights\n\n"
        f"`python benchmarks/interrupts.py --rounds {rounds} --seconds {seconds:g}`: SGLang with the "
        f"tiny model on a CPU, {NUM_IN_FLIGHT} requests in flight, an update every {UPDATE_EVERY_S:g} s. "
        'Answer lengths are log-normal (median 250, up to 3000). "To drain" is the rate divided by '
        "that of `drain` in the same round.\n\n"
        + table(["mode", "tokens/s, median", "to drain, least / median / most", "updates"], rows)
    )
    print(text)
    if write:
        write_section("interrupts", text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    arguments = parser.parse_args()
    try:
        find_environment()
    except ConfigError as exc:
        print(f"not measured: {exc}")
        sys.exit()
    asyncio.run(main(arguments.rounds, arguments.seconds, arguments.write))
