"""The cost of a weight swap on a real SGLang server, by transport, while it generates.

    python benchmarks/swap.py [--updates 20] [--write]

One server of the tiny model in fp32 on the CPU, eight requests always in flight. Every update brings
another checkpoint; after each, sampled tokens are re-scored by a plain transformers forward under
the right checkpoint and under the one before. `stall` is the time in which the server sampled
nothing, verification of label and checksums included, also as a share of a 5 s training step. On a
shared machine most of it is waiting for a core; the least of the stalls comes closest to a quiet one.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from tables import table, write_section
from transformers import AutoModelForCausalLM

from areal_sdk.backends.remote.weights.swap import SwapTimes
from areal_sdk.engine import GenerateRequest, GenerateResult
from areal_sdk.errors import ConfigError
from areal_sdk.models import make_tiny_model
from areal_sdk.types import WeightUpdate
from areal_sdk_sglang.engine import SGLangEngine
from areal_sdk_sglang.install import find_environment
from areal_sdk_sglang.servers import SGLangLauncher
from areal_sdk_sglang.settings import SGLangSection

TransportName = Literal["disk", "tensor", "distributed"]
TRANSPORTS: Sequence[TransportName] = ("disk", "tensor", "distributed")
STEP_S = 5.0
NUM_IN_FLIGHT = 8
NUM_CHECKPOINTS = 4
PROMPT = tuple(b"The weather today is")


@dataclass
class Measured:
    swaps: list[SwapTimes] = field(default_factory=list)
    errors_right: list[float] = field(default_factory=list)
    errors_wrong: list[float] = field(default_factory=list)

    def row(self, transport: str) -> list[str]:
        stalls = [swap.interrupted_s for swap in self.swaps]
        median = statistics.median(stalls)
        return [
            transport,
            f"{1e3 * min(stalls):.0f} / {1e3 * median:.0f} / {1e3 * max(stalls):.0f}",
            f"{1e3 * statistics.median(s.pushed_s for s in self.swaps):.0f}",
            f"{1e3 * statistics.median(s.verified_s for s in self.swaps):.0f}",
            f"{100 * min(stalls) / STEP_S:.2f} / {100 * median / STEP_S:.2f} %",
            f"{max(self.errors_right):.1e}",
            f"{min(self.errors_wrong):.1e}",
        ]


class Rescorer:
    """Logprob errors of sampled tokens under any checkpoint."""

    def __init__(self, checkpoints: Sequence[Path]) -> None:
        self._models = [
            AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in checkpoints
        ]

    def error(self, result: GenerateResult, checkpoint: int) -> float:
        sequence = torch.tensor([[*PROMPT, *result.tokens]])
        with torch.inference_mode():
            logits = self._models[checkpoint](sequence).logits[0, len(PROMPT) - 1 : -1]
        expected = torch.log_softmax(logits, dim=-1)[range(len(result.tokens)), result.tokens]
        return float((expected - torch.tensor(result.logprobs)).abs().max())


async def keep_busy(engine: SGLangEngine) -> None:
    while True:
        await engine.generate(GenerateRequest(PROMPT, 400, ignore_eos=True))


async def measure(
    engine: SGLangEngine, checkpoints: Sequence[Path], rescorer: Rescorer, *, updates: int
) -> Measured:
    measured = Measured()
    async with asyncio.TaskGroup() as group:
        load = [group.create_task(keep_busy(engine)) for _ in range(NUM_IN_FLIGHT)]
        for version in range(1, updates + 2):
            which = version % NUM_CHECKPOINTS
            path = checkpoints[which] / "model.safetensors"
            await engine.update_weights(WeightUpdate(version, str(path)))
            if version == 1:
                continue  # made the connection: starts the sender, joins the group
            measured.swaps += engine.last_swaps.values()
            result = await engine.generate(GenerateRequest(PROMPT, 32, ignore_eos=True))
            assert set(result.versions) == {version}
            measured.errors_right.append(rescorer.error(result, which))
            measured.errors_wrong.append(rescorer.error(result, which - 1))
        for task in load:
            task.cancel()
    return measured


async def main(updates: int, write: bool) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        checkpoints = [
            make_tiny_model(Path(root) / str(seed), seed=seed) for seed in range(NUM_CHECKPOINTS)
        ]
        rescorer = Rescorer(checkpoints)
        environment = find_environment()
        rows = []
        for transport in TRANSPORTS:
            logs = Path(root) / transport
            engine = SGLangEngine(
                checkpoints[0],
                launcher=SGLangLauncher(checkpoints[0], environment, logs),
                log_dir=logs,
                settings=SGLangSection(transport=transport),
            )
            try:
                await engine.start()
                measured = await measure(engine, checkpoints, rescorer, updates=updates)
            finally:
                await engine.aclose()
            rows.append(measured.row(transport))
            print(rows[-1], flush=True)
    header = [
        "transport",
        "stall, least / median / worst, ms",
        "moving weights, ms",
        "label and checksums, ms",
        f"least / median, of a {STEP_S:g} s step",
        "worst error, right checkpoint",
        "least error, wrong checkpoint",
    ]
    text = (
        f"## Weight swaps on SGLang {environment.version}\n\n"
        f"`python benchmarks/swap.py --updates {updates}`: tiny model (0.36 M parameters), fp32, CPU, "
        f"{NUM_IN_FLIGHT} requests in flight, {updates} updates each, `retract`.\n\n"
        + table(header, rows)
    )
    print(text)
    if write:
        write_section("swap", text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    arguments = parser.parse_args()
    try:
        find_environment()
    except ConfigError as exc:
        print(f"not measured: {exc}")
        sys.exit()
    asyncio.run(main(arguments.updates, arguments.write))
