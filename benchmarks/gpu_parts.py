"""The parts that `gpu.py` measures: a model made on the spot, an engine, a trainer, new weights,
all at once."""

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import torch
from tables import table
from transformers import AutoModelForCausalLM, Qwen2Config

from areal_sdk.backends.local import LocalEngine
from areal_sdk.engine import GenerateRequest, InferenceEngine
from areal_sdk.fsdp.trainer import FSDPTrainer
from areal_sdk.models import make_tiny_model
from areal_sdk.trajectory import Trajectory, TrajectoryGroup
from areal_sdk_sglang.engine import SGLangEngine

TITLE = "## One GPU, all parts"


@dataclass(frozen=True, slots=True)
class Plan:
    """The amounts of everything that is measured."""

    shape: dict[str, int]
    dtype: Literal["float32", "bfloat16"]
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
    plan: "Plan"
    path: Path
    rows: list[tuple[str, str]] = field(default_factory=list)
    values: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, value: float, unit: str) -> None:
        self.values[name] = value
        self.note(name, f"{value:,.4g} {unit}")

    def note(self, name: str, text: str) -> None:
        self.rows.append((name, text))
        print(f"{name}: {text}", flush=True)

    def save(self) -> None:
        content = {"machine": self.machine, "plan": asdict(self.plan), "values": self.values}
        content["rows"] = dict(self.rows)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(content, indent=2) + "\n")

    def text(self) -> str:
        facts = ", ".join(f"{name} {value}" for name, value in self.machine.items())
        head = f"{TITLE}\n\n`python benchmarks/gpu.py`: {facts}.\n\n"
        return head + table(["what", "measured"], self.rows)


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
    num_parameters = int(sum(parameter.numel() for parameter in model.parameters()))
    if device == "cuda":
        del model
        torch.cuda.empty_cache()  # the card is the engine's and the trainer's
    return num_parameters


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
    trainer: FSDPTrainer,
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
    report.add("train step, one rank (nothing is sharded)", step_s, "s")
    report.add("train, tokens", tokens / step_s, "tokens/s")
    if peak_tflops:
        mfu = 6 * parameters * tokens / step_s / (peak_tflops * 1e12)
        report.add("train, MFU", 100 * mfu, "% of the dense bf16 peak")
    else:
        report.note("train, MFU", "not computed: the peak of this device is not known")
    return step_s


async def measure_swap(
    report: Report, name: str, engine: InferenceEngine, trainer: FSDPTrainer
) -> None:
    times = []
    first = engine.version + 1
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
    report: Report, name: str, engine: InferenceEngine, trainer: FSDPTrainer, plan: Plan
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
