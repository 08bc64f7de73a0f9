"""One command for a CUDA machine without network: engine, trainer, weight swap, and all at once.

    PYTHONPATH=. python benchmarks/gpu.py [--write]            # 1.5B Qwen2 shape, bf16, random
    PYTHONPATH=. python benchmarks/gpu.py --small              # a tiny model, any machine

Needs torch (2.11 or newer), transformers and what areal-sdk imports; no network and no checkpoint:
the model is made here with random weights. Packages that the machine lacks (perhaps only orjson)
are carried as wheels: `pip download --dest wheels ...` here for its Python and platform, then there
`pip install --no-index --find-links wheels ...`.

Each part stands alone: one that fails is named in the table, the others go on, and table and JSON
are written after every part. The SGLang part runs where SGLang is installed and says so where it is
not. Numbers are wall-clock after a warm-up; MFU is 6 x parameters x tokens a second over the card's
dense bf16 peak, and is left out where the peak is not known (`--peak-tflops` gives it).
"""

import argparse
import asyncio
import os
import platform
import sys
import tempfile
import traceback
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol, TypeVar

try:
    import torch
    import transformers
    from gpu_parts import (
        TITLE,
        Plan,
        Report,
        make_model,
        measure_engine,
        measure_swap,
        measure_together,
        measure_trainer,
    )
    from tables import write_section

    from areal_sdk.backends.local import LocalEngine, LocalOptions
    from areal_sdk.config import EngineSection, TrainerSection
    from areal_sdk.engine import InferenceEngine
    from areal_sdk.errors import ConfigError
    from areal_sdk.fsdp.spec import TrainerSpec
    from areal_sdk.fsdp.trainer import FSDPTrainer
    from areal_sdk_sglang.engine import SGLangEngine
    from areal_sdk_sglang.install import find_environment
    from areal_sdk_sglang.servers import SGLangLauncher
    from areal_sdk_sglang.settings import SGLangSection
except ModuleNotFoundError as exc:
    sys.exit(f"{exc.name} is not installed: the head of {__file__} says how to carry it")

PART_S = 240.0
"""Longest time of one part: a hang must not cost the others their turn."""

MAX_CONTEXT = 1024
KV_MEMORY_GB = 12.0
SGLANG_MEMORY_FRACTION = 0.3
"""The trainer of 1.5 billion parameters wants about 45 GB beside either engine."""

PEAK_TFLOPS = {"H200": 989, "H100": 989, "A100": 312, "L40S": 362, "L4": 121, "RTX 4090": 165}
"""Dense bf16."""


class Starts(Protocol):
    """A trainer or an engine."""

    async def start(self) -> None: ...
    async def aclose(self) -> None: ...


StartedT = TypeVar("StartedT", bound=Starts)


class Benchmark:
    """The parts, in order of what they need; `engine` and `trainer` are None where they failed."""

    def __init__(
        self, report: Report, plan: Plan, root: Path, *, device: str, peak_tflops: float | None
    ) -> None:
        self._report = report
        self._plan = plan
        self._model, self._logs = root / "model", root / "logs"
        self._device = device
        self._peak_tflops = peak_tflops
        self._parameters = make_model(self._model, plan, device)
        report.add("model", self._parameters / 1e9, "billion parameters")

    async def run(self) -> None:
        report, plan = self._report, self._plan
        async with AsyncExitStack() as trainers:
            trainer = await self._started("trainer", self._make_trainer, trainers)
            async with AsyncExitStack() as engines:
                engine = await self._started("local engine", self._make_engine, engines)
                if engine is not None:
                    await self._part(
                        "local engine", lambda: measure_engine(report, "local engine", engine, plan)
                    )
                if trainer is not None:
                    await self._part("train", lambda: self._measure_trainer(trainer))
                if engine is not None and trainer is not None:
                    await self._measure_both("local engine", engine, trainer)
            await self._measure_sglang(trainer)

    def _make_trainer(self) -> FSDPTrainer:
        plan = self._plan
        trainer = TrainerSection(
            device=self._device,
            precision=plan.dtype,
            share_prompts=False,  # nothing to share in random trajectories
        )
        spec = TrainerSpec(self._model, trainer=trainer, publish_dtype=plan.dtype)
        return FSDPTrainer(spec, log_dir=self._logs)

    def _make_engine(self) -> LocalEngine:
        plan = self._plan
        return LocalEngine(
            self._model,
            log_dir=self._logs,
            options=LocalOptions(
                dtype=plan.dtype,
                device=self._device,
                max_slots=plan.engine_slots,
                max_context=MAX_CONTEXT,
                kv_memory_gb=KV_MEMORY_GB if self._device == "cuda" else None,
            ),
        )

    async def _measure_trainer(self, trainer: FSDPTrainer) -> None:
        await measure_trainer(
            self._report,
            trainer,
            self._plan,
            parameters=self._parameters,
            peak_tflops=self._peak_tflops,
        )

    async def _measure_both(self, name: str, engine: InferenceEngine, trainer: FSDPTrainer) -> None:
        report, plan = self._report, self._plan
        await self._part(
            f"{name}: new weights", lambda: measure_swap(report, name, engine, trainer)
        )
        await self._part(
            f"{name}: together", lambda: measure_together(report, name, engine, trainer, plan)
        )

    async def _measure_sglang(self, trainer: FSDPTrainer | None) -> None:
        try:
            environment = find_environment()
        except ConfigError:
            self._report.note("SGLang", "not measured: it is not installed here")
            return
        section = EngineSection(dtype=self._plan.dtype)
        settings = SGLangSection(
            memory_fraction=None if environment.cpu else SGLANG_MEMORY_FRACTION
        )

        def make() -> SGLangEngine:
            return SGLangEngine(
                self._model,
                launcher=SGLangLauncher(
                    self._model, environment, self._logs, engine=section, settings=settings
                ),
                log_dir=self._logs,
                settings=settings,
            )

        name = f"SGLang {environment.version}"
        async with AsyncExitStack() as engines:
            engine = await self._started(name, make, engines)
            if engine is None:
                return
            await self._part(name, lambda: measure_engine(self._report, name, engine, self._plan))
            if trainer is not None:
                await self._measure_both(f"{name}, tensor", engine, trainer)

    async def _started(
        self, name: str, make: Callable[[], StartedT], owner: AsyncExitStack
    ) -> StartedT | None:
        """A thing that starts and closes, closed by `owner`; None where it did not start."""
        found: list[StartedT] = []

        async def start() -> None:
            thing = make()
            owner.push_async_callback(thing.aclose)
            await thing.start()
            found.append(thing)

        await self._part(f"{name}: start", start)
        return found[0] if found else None

    async def _part(self, name: str, measure: Callable[[], Awaitable[None]]) -> None:
        """The rest of the report is worth having when this part cannot run."""
        print(f"-- {name}", flush=True)
        try:
            async with asyncio.timeout(PART_S):
                await measure()
        except TimeoutError:
            self._report.note(name, f"failed: no end within {PART_S:g} s")
        except Exception as exc:  # noqa: BLE001 - whatever it is, it is this part's alone
            traceback.print_exc()
            why = f"{type(exc).__name__}: {exc}".splitlines()[0]
            self._report.note(name, f"failed: {why}")
        self._report.save()


def describe_machine(device: str) -> dict[str, str]:
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "CPU, no CUDA device",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "CUDA": torch.version.cuda or "none",
        "transformers": transformers.__version__,
    }


def peak_of(machine: dict[str, str]) -> float | None:
    matches = [peak for name, peak in PEAK_TFLOPS.items() if name in machine["device"]]
    return float(matches[0]) if matches else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a tiny model, to see that it runs")
    parser.add_argument("--json", type=Path, default=Path("runs/gpu.json"))
    parser.add_argument("--peak-tflops", type=float, help="dense bf16, of one card")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not arguments.small:
        nothing = "No CUDA device was there when this was written: nothing was measured."
        print(f"{nothing} (--small runs the same code on a CPU)")
        if arguments.write:
            write_section("gpu", f"{TITLE}\n\n`python benchmarks/gpu.py`: {nothing}")
        return
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    torch.set_num_threads(1 if device == "cpu" else torch.get_num_threads())
    plan = Plan.small() if arguments.small else Plan.large()
    report = Report(describe_machine(device), plan, arguments.json)
    peak = arguments.peak_tflops or peak_of(report.machine)
    with tempfile.TemporaryDirectory() as root:
        benchmark = Benchmark(report, plan, Path(root), device=device, peak_tflops=peak)
        try:
            asyncio.run(benchmark.run())
        finally:
            print(f"\n{report.text()}")
    if arguments.write:
        write_section("gpu", report.text())


if __name__ == "__main__":
    main()
