"""One command for a CUDA machine without network: engine, trainer, weight swap, and all at once.

    python benchmarks/gpu.py [--write]                          # 1.5B Qwen2 shape, bf16, random
    python benchmarks/gpu.py --small                              # a tiny model, any machine

Needs torch, transformers and areal-sdk, no network and no checkpoint: the model is made here with
random weights. The SGLang part runs where SGLang is installed and says so where it is not. Numbers
are wall-clock after a warm-up; MFU is 6 x parameters x tokens a second over the card's dense bf16
peak, and is left out where the peak is not known (`--peak-tflops` gives it).
"""

import argparse
import asyncio
import json
import os
import platform
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from tables import table, write_section
from transformers import AutoModelForCausalLM, Qwen2Config

from areal_sdk.backends.local import LocalEngine
from areal_sdk.backends.sglang import (
    Launcher,
    ServerOptions,
    SGLangEngine,
    SGLangOptions,
    find_environment,
)
from areal_sdk.engine import GenerateRequest, InferenceEngine
from areal_sdk.errors import ArealError, ConfigError
from areal_sdk.models import make_tiny_model
from areal_sdk.trainer.client import TrainerClient
from areal_sdk.trainer.options import TrainerOptions
from areal_sdk.types import Trajectory, TrajectoryGroup

TITLE = "## One GPU, all parts"

PEAK_TFLOPS = {"H200": 989, "H100": 989, "A100": 312, "L40S": 362, "L4": 121, "RTX 4090": 165}
"""Dense bf16."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything."""

    shape: dict[str, int]
    dtype: str
    concurrency: Sequence[int]
    prompt_tokens: int
    new_tokens: int
    group_size: int
    num_groups: int
    tokens_per_trajectory: int
    train_steps: int
    engine_slots: int

    @classmethod
    def large(cls) -> "Plan":
        shape = {
            "hidden_size": 1536,
            "intermediate_size": 8960,
            "num_hidden_layers": 28,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
            "vocab_size": 151936,
        }
        return cls(shape, "bfloat16", (1, 8, 64, 256), 128, 128, 8, 8, 1024, 5, 256)

    @classmethod
    def small(cls) -> "Plan":
        shape = {
            "hidden_size": 96,
            "intermediate_size": 256,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 512,
        }
        return cls(shape, "float32", (1, 8), 32, 32, 4, 2, 64, 2, 8)


@dataclass
class Report:
    machine: dict[str, str]
    rows: list[tuple[str, str]] = field(default_factory=list)
    values: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, value: float, unit: str) -> None:
        self.values[name] = value
        self.note(name, f"{value:,.4g} {unit}")

    def note(self, name: str, text: str) -> None:
        self.rows.append((name, text))
        print(f"{name}: {text}", flush=True)


def make_model(directory: Path, plan: Plan, device: str) -> int:
    """A random checkpoint of the plan's shape; returns its number of parameters."""
    make_tiny_model(directory)  # brings a tokenizer; config and weights are replaced
    config = Qwen2Config(
        **plan.shape,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=256,
        eos_token_id=258,
    )
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, plan.dtype))
    model.save_pretrained(directory)
    return sum(parameter.numel() for parameter in model.parameters())


async def generation_rate(engine: InferenceEngine, plan: Plan, concurrency: int) -> float:
    """New tokens a second over `concurrency` simultaneous requests without a common prefix."""
    draw = random.Random(concurrency)
    prompts = [
        tuple(draw.randrange(256) for _ in range(plan.prompt_tokens)) for _ in range(concurrency)
    ]
    began = time.perf_counter()
    results = await asyncio.gather(
        *(engine.generate(GenerateRequest(p, plan.new_tokens, ignore_eos=True)) for p in prompts)
    )
    assert all(len(result.tokens) == plan.new_tokens for result in results)
    return concurrency * plan.new_tokens / (time.perf_counter() - began)


async def measure_engine(report: Report, name: str, engine: InferenceEngine, plan: Plan) -> None:
    for concurrency in plan.concurrency:
        await generation_rate(engine, plan, concurrency)  # warm-up: graphs, caches, allocator
        rate = await generation_rate(engine, plan, concurrency)
        report.add(f"{name}, {concurrency} requests", rate, "tokens/s")


def batch(plan: Plan) -> list[TrajectoryGroup]:
    """Random trajectories, half of each trained, rewards that differ within a group."""
    draw = random.Random(0)
    length, prompt = plan.tokens_per_trajectory, plan.tokens_per_trajectory // 2
    mask = tuple(index >= prompt for index in range(length))

    def trajectory(group: int, sibling: int) -> Trajectory:
        return Trajectory(
            episode_id=f"{group}-{sibling}",
            task_id=str(group),
            tokens=tuple(draw.randrange(plan.shape["vocab_size"]) for _ in range(length)),
            loss_mask=mask,
            logprobs=tuple(-8.0 if trained else 0.0 for trained in mask),
            versions=tuple(0 if trained else -1 for trained in mask),
            temperatures=(1.0,) * length,
            turn_of_token=tuple(0 if trained else -1 for trained in mask),
            reward=float(sibling % 2),
        )

    return [
        TrajectoryGroup(str(g), str(g), tuple(trajectory(g, s) for s in range(plan.group_size)))
        for g in range(plan.num_groups)
    ]


async def measure_trainer(
    report: Report,
    trainer: TrainerClient,
    plan: Plan,
    *,
    parameters: int,
    peak_tflops: float | None,
) -> float:
    """Seconds a step."""
    groups = batch(plan)
    tokens = plan.num_groups * plan.group_size * plan.tokens_per_trajectory
    await trainer.step(groups, version=0, timeout_s=600)
    began = time.perf_counter()
    for _ in range(plan.train_steps):
        await trainer.step(groups, version=0, timeout_s=600)
    step_s = (time.perf_counter() - began) / plan.train_steps
    report.add("train step", step_s, "s")
    report.add("train, tokens", tokens / step_s, "tokens/s")
    if peak_tflops:
        mfu = 6 * parameters * tokens / step_s / (peak_tflops * 1e12)
        report.add("train, MFU", 100 * mfu, "% of the dense bf16 peak")
    else:
        report.note("train, MFU", "not computed: the peak of this device is not known")
    return step_s


async def measure_swap(
    report: Report, name: str, engine: InferenceEngine, trainer: TrainerClient, *, first: int
) -> None:
    times = []
    for version in range(first, first + 4):
        began = time.perf_counter()
        update = await trainer.publish(version)
        published = time.perf_counter()
        await engine.update_weights(update)
        times.append((published - began, time.perf_counter() - published, stall_of(engine)))
    publish_s, update_s, stall_s = (min(column) for column in zip(*times[1:], strict=True))
    report.add(f"{name}: publish", publish_s, "s")
    report.add(f"{name}: update", update_s, "s")
    report.add(f"{name}: generation held for", stall_s, "s")


def stall_of(engine: InferenceEngine) -> float:
    if isinstance(engine, LocalEngine):
        return engine.last_pause_s
    assert isinstance(engine, SGLangEngine)
    return max(times.interrupted_s for times in engine.last_swaps.values())


async def measure_together(
    report: Report, name: str, engine: InferenceEngine, trainer: TrainerClient, plan: Plan
) -> None:
    """Training steps with a publish and an in-flight update each, while requests never cease."""
    concurrency = plan.concurrency[-2] if len(plan.concurrency) > 2 else plan.concurrency[-1]
    num_tokens = 0

    async def keep_busy(seed: int) -> None:
        nonlocal num_tokens
        draw = random.Random(seed)
        while True:
            prompt = tuple(draw.randrange(256) for _ in range(plan.prompt_tokens))
            request = GenerateRequest(prompt, plan.new_tokens, ignore_eos=True)
            async for chunk in engine.stream(request):
                num_tokens += len(chunk.tokens)

    groups = batch(plan)
    async with asyncio.TaskGroup() as tasks:
        load = [tasks.create_task(keep_busy(seed)) for seed in range(concurrency)]
        began, before = time.perf_counter(), num_tokens
        first = engine.version + 1
        for version in range(first, first + plan.train_steps):
            await trainer.step(groups, version=version - 1, timeout_s=600)
            await engine.update_weights(await trainer.publish(version))
        elapsed = time.perf_counter() - began
        for task in load:
            task.cancel()
    report.add(f"{name}: asynchronous step", elapsed / plan.train_steps, "s")
    rate = (num_tokens - before) / elapsed
    report.add(f"{name}: tokens meanwhile, {concurrency} requests", rate, "tokens/s")


@asynccontextmanager
async def started(thing: Any) -> Any:
    await thing.start()
    try:
        yield thing
    finally:
        await thing.aclose()


async def measure_all(report: Report, plan: Plan, *, device: str, peak: float | None) -> None:
    with tempfile.TemporaryDirectory() as root:
        model, logs = Path(root) / "model", Path(root) / "logs"
        parameters = make_model(model, plan, device)
        report.add("model", parameters / 1e9, "billion parameters")
        options = TrainerOptions(
            model,
            device=device,
            precision=plan.dtype,
            publish_dtype=plan.dtype,
            share_prompts=False,  # nothing to share in random trajectories
        )
        local = LocalEngine(
            model, log_dir=logs, dtype=plan.dtype, device=device, max_slots=plan.engine_slots
        )
        async with started(TrainerClient(options, log_dir=logs)) as trainer:
            async with started(local) as engine:
                await measure_engine(report, "local engine", engine, plan)
                await measure_trainer(
                    report, trainer, plan, parameters=parameters, peak_tflops=peak
                )
                await measure_swap(report, "local engine", engine, trainer, first=1)
                await measure_together(report, "local engine", engine, trainer, plan)
            await attempt(
                report, "SGLang", lambda: measure_sglang(report, plan, trainer, model, logs)
            )


async def measure_sglang(
    report: Report, plan: Plan, trainer: TrainerClient, model: Path, logs: Path
) -> None:
    try:
        environment = find_environment()
    except ConfigError:
        report.note("SGLang", "not measured: it is not installed here")
        return
    options = ServerOptions(
        model, dtype=plan.dtype, memory_fraction=None if environment.cpu else 0.5
    )
    engine = SGLangEngine(
        model,
        launcher=Launcher(options, environment, logs),
        log_dir=logs,
        options=SGLangOptions(transport="tensor"),
    )
    async with started(engine):
        await measure_engine(report, f"SGLang {environment.version}", engine, plan)
        await measure_swap(report, "SGLang, tensor", engine, trainer, first=1)
        await measure_together(report, "SGLang", engine, trainer, plan)


async def attempt(report: Report, name: str, measure: Callable[[], Awaitable[None]]) -> None:
    """The rest of the report is worth having when this part cannot run."""
    try:
        await measure()
    except ArealError as exc:
        report.note(name, f"not measured: {exc}")


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
    report = Report(describe_machine(device))
    peak = arguments.peak_tflops or peak_of(report.machine)
    asyncio.run(measure_all(report, plan, device=device, peak=peak))
    content = {"machine": report.machine, "plan": asdict(plan), "values": report.values}
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(content, indent=2) + "\n")
    facts = ", ".join(f"{name} {value}" for name, value in report.machine.items())
    text = f"{TITLE}\n\n`python benchmarks/gpu.py`: {facts}.\n\n"
    text += table(["what", "measured"], report.rows)
    print(f"\n{text}")
    if arguments.write:
        write_section("gpu", text)


if __name__ == "__main__":
    main()
