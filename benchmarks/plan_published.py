"""Published figures of other systems (published.json), and what a plan from the table of hardware says of them."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist
from typing import Any

from areal_sdk.config import RolloutSection
from areal_sdk.flow import FlowRules
from areal_sdk.models.experts import Mixture
from areal_sdk.shapes import SHAPES, ModelShape
from areal_sdk_plan.hardware import (
    GPUS,
    Efficiencies,
    engine_speed,
    engine_widths,
    trainer_speed,
)
from areal_sdk_plan.parts import SPREAD, Described
from areal_sdk_plan.simulation.run import simulate, simulated_steps
from areal_sdk_plan.simulation.setup import Setup
from areal_sdk_plan.speeds import TrainerSpeed
from areal_sdk_plan.workload import LongTail, Workload

PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text())
ANSWER = 200
"""Tokens of a tool's answer."""
EPISODES = 256
"""A simulation has about so many in a batch: of a larger one, an equal part of batch and engines."""
ASYNC_STEPS, WARM = 6, 4

MODELS = {
    **SHAPES,
    "Qwen3-0.6B": ModelShape(
        151936, 1024, 3072, 28, 16, 8, 128, is_tied=True, has_normed_heads=True
    ),
    "Qwen3-4B": ModelShape(151936, 2560, 9728, 36, 32, 8, 128, is_tied=True, has_normed_heads=True),
    "Qwen3-30B-A3B": ModelShape(
        151936, 2048, 0, 48, 32, 4, 128, mixture=Mixture(128, 8, 768), has_normed_heads=True
    ),
    "Qwen3-235B-A22B": ModelShape(
        151936, 4096, 0, 94, 64, 4, 128, mixture=Mixture(128, 8, 1536), has_normed_heads=True
    ),
    "INTELLECT-3": ModelShape(
        151552, 4096, 1408, 46, 96, 8, 128, mixture=Mixture(128, 8, 1408, 1408)
    ),
    # The next are about as large and as wide as the model, which has parts that a shape cannot name:
    # compressed keys, and layers without any.
    "DeepSeek-V3": ModelShape(
        129280, 7168, 2048, 61, 128, 4, 102, mixture=Mixture(256, 8, 2048, 2048)
    ),
    "Nemotron-3-Nano": ModelShape(
        131072, 2688, 3712, 52, 32, 1, 128, mixture=Mixture(128, 6, 1856, 3712)
    ),
    "Qwen3.5-9B": ModelShape(248320, 4096, 12288, 32, 16, 1, 256, has_normed_heads=True),
    "Qwen3.5-35B-A3B": ModelShape(
        248320, 2048, 512, 40, 16, 1, 256, mixture=Mixture(256, 8, 512, 512), has_normed_heads=True
    ),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A published figure and the plan's."""

    source: str
    row: str
    name: str
    kind: str
    """Whole steps, the trainer alone, generation, or weights on their way."""
    published: float
    predicted: float
    whole: float = 0.0
    """Seconds of the published step, for a wait: how far that is off counts as part of the step."""
    is_rate: bool = False

    @property
    def error(self) -> float:
        """Natural logarithm of predicted time by published time: above 0, the plan is too slow."""
        if self.whole:
            return math.log1p(max(-0.99, (self.predicted - self.published) / self.whole))
        error = math.log(self.predicted / self.published)
        return -error if self.is_rate else error


def predictions(efficiency: Efficiencies) -> list[Figure]:
    found = [*_of_trainers(efficiency), *_of_weights(efficiency)]
    found += [_of_serving(row, efficiency) for row in PUBLISHED["serving"]]
    for row in PUBLISHED["runs"]:
        found += _of_run(row, efficiency)
    return found


# --- parts of a run alone ----------------------------------------------------------------------------


def _of_trainers(efficiency: Efficiencies) -> Iterator[Figure]:
    for gpu, gpus, model, weights, kind, row, *how, step_s, rate, _, _ in PUBLISHED["trainers"]:
        tokens = 2 * row * gpus
        speed = trainer_speed(MODELS[model], GPUS[gpu], ranks=gpus, efficiency=efficiency, row=row)
        predicted_s = speed.step_s(tokens, 2 * gpus)
        name = (
            f"{kind}, {model}, {weights}, {row:,}, {gpus} x {gpu}, {how[0].lower()}, {how[1][-1]}"
        )
        yield Figure("prime-rl", name, "step", "trainer", step_s, predicted_s)
        sent_s = 2.0 * speed.whole_publish_s if (kind, weights) == ("rl", "full") else 0.0
        predicted = tokens / (predicted_s + sent_s)
        yield Figure("prime-rl", name, "tokens/s", "trainer", rate, predicted, is_rate=True)


def _of_weights(efficiency: Efficiencies) -> Iterator[Figure]:
    for row in PUBLISHED["weights"]:
        shape = MODELS[row["model"]]
        kind = GPUS[row["gpu"]]
        engine = engine_speed(shape, kind, tp=row["tp"], efficiency=efficiency)
        trainer = trainer_speed(shape, kind, ranks=row["ranks"], efficiency=efficiency)
        seconds = trainer.whole_publish_s + engine.swap_s
        for name in ("plain", "checkpoint engine"):
            yield Figure(row["source"], row["name"], name, "weights", row[name], seconds)


def _of_serving(row: Mapping[str, Any], efficiency: Efficiencies) -> Figure:
    engine = engine_speed(
        MODELS[row["model"]],
        GPUS[row["gpu"]],
        tp=1,
        efficiency=efficiency,
        max_slots=row["together"],
        weight_bytes=row.get("weight_bytes", 2),
    )
    workload = Workload.described(
        output=LongTail(row["output"], row.get("sigma", 0.0)),
        prompt=row["prompt"],
        group_size=1,
        shares_prompt=False,
    )
    rollout = RolloutSection(
        batch=row["requests"], group_size=1, max_staleness=0, max_inflight=row["requests"]
    )
    seconds = simulated_steps(
        Setup(FlowRules(rollout), workload, engine, TrainerSpeed(0.0)), steps=1
    )[0].waited_s
    tokens = row["requests"] * (row["prompt"] + workload.mean_sampled())
    return Figure(
        row["source"],
        row["name"],
        "tokens/s",
        "generation",
        row["tokens_per_s"],
        tokens / seconds,
        is_rate=True,
    )


# --- whole runs ----------------------------------------------------------------------------------------


def _of_run(row: Mapping[str, Any], efficiency: Efficiencies) -> Iterator[Figure]:
    played = _workload(row, efficiency)
    simulated = {name: value for name, value in row.items() if name not in NOT_SIMULATED}
    step_s, waited_s = _simulated(json.dumps(simulated), efficiency, EPISODES)
    phase = {
        "step": step_s,
        "generation": waited_s,
        "wait": waited_s,
        "forward": _phase_s(row, played, efficiency, forwards=1),
        "reference": _phase_s(row, played, efficiency, forwards=1),
        "update": _phase_s(row, played, efficiency, forwards=0),
    }
    tokens = row["batch"] * (played.mean_sampled() + row["prompt"])
    given = _giver(row["lengths_from"]) if "lengths_from" in row else {}
    for name, published in row["figures"].items():
        if name == given.get("figure") and row["name"] == given["row"]["name"]:
            continue
        whole = row["figures"]["step"] if name == "wait" else 0.0
        is_rate = name == "tokens/s of a GPU"
        if name.startswith("hours of"):
            predicted = step_s * int(name.split()[2]) / 3600.0
        elif is_rate:
            predicted = tokens / step_s / row["gpus"]
        elif "speculation" in name:
            shorter_s = step_s - waited_s * (1.0 - 1.0 / row["speculation"])
            predicted = shorter_s if name.startswith("step") else step_s / shorter_s
        else:
            predicted = phase[name]
        kind = {"generation": "generation", "wait": "step"}.get(name, "trainer")
        if name == "step" or is_rate or name.startswith("hours") or "speculation" in name:
            kind = "step"
        yield Figure(
            row["source"],
            row["name"],
            name,
            kind,
            published,
            predicted,
            whole=whole,
            is_rate=is_rate,
        )


def _giver(name: str) -> dict[str, Any]:
    row = next(row for row in PUBLISHED["runs"] if row.get("gives_lengths") == name)
    return {"row": row, "figure": "update"}


def _workload(row: Mapping[str, Any], efficiency: Efficiencies) -> Workload:
    """Episodes as long as the source says, or as the phase of the trainer that gives the lengths."""
    most = row["context"] - row["prompt"]
    if row.get("truncated"):
        median = most / math.exp(SPREAD * NormalDist().inv_cdf(1.0 - row["truncated"]))
        return _drawn(row, median)
    if row.get("mean"):
        return _drawn(
            row, _median(row["mean"], most if row.get("turns", 1) == 1 else math.inf, row)
        )
    given = _giver(row["lengths_from"])
    giver, wanted = given["row"], given["row"]["figures"][given["figure"]]
    least, longest = 8.0, 4.0 * most
    while longest / least > 1.02:
        middle = math.sqrt(least * longest)
        seconds = _phase_s(giver, _drawn(giver, middle), efficiency, forwards=0)
        least, longest = (least, middle) if seconds > wanted else (middle, longest)
    return _drawn(row, least)


def _median(mean: float, most: float, row: Mapping[str, Any]) -> float:
    """The median of a turn whose mean, cut off at `most`, is the given one."""
    turns = row.get("turns", 1)
    if turns > 1:
        sampled: float = (mean - row["prompt"]) / turns - ANSWER
        return sampled / math.exp(SPREAD**2 / 2)
    least, longest = 1.0, most * 16
    normal = NormalDist()
    while longest / least > 1.001:
        median = math.sqrt(least * longest)
        cut = math.log(most / median) / SPREAD
        whole = median * math.exp(SPREAD**2 / 2) * normal.cdf(cut - SPREAD)
        found = whole + most * (1.0 - normal.cdf(cut))
        least, longest = (least, median) if found > mean else (median, longest)
    return least


def _drawn(row: Mapping[str, Any], median: float) -> Workload:
    return _described(
        row["prompt"],
        round(median),
        row.get("turns", 1),
        row.get("tool_s", 0.0),
        row["context"],
        row["group"],
    )


@lru_cache(maxsize=512)
def _described(*words: Any) -> Workload:
    return Described(*words).workload()


def _trainer(
    row: Mapping[str, Any], played: Workload, efficiency: Efficiencies, *, passes: float
) -> TrainerSpeed:
    return trainer_speed(
        MODELS[row["model"]],
        GPUS[row["gpu"]],
        ranks=row.get("ranks", row["gpus"]),
        efficiency=replace(efficiency, train_passes=passes),
        row=played.row_of_token(),
        updates=row["minibatches"],
    )


def _phase_s(
    row: Mapping[str, Any], played: Workload, efficiency: Efficiencies, *, forwards: int
) -> float:
    """Seconds of a forward over the batch, or (0 forwards) of its updates."""
    passes = forwards or efficiency.train_passes
    trainer = _trainer(row, played, efficiency, passes=passes)
    if forwards:
        trainer = replace(trainer, fixed_s=0.0, collectives=None)
    batch: int = row["batch"]
    return trainer.step_s(batch * played.mean_row(), batch)


NOT_SIMULATED = ("name", "figures", "gives_lengths", "speculation")


@lru_cache(maxsize=64)
def _simulated(described: str, efficiency: Efficiencies, episodes: int) -> tuple[float, float]:
    """Seconds of a step, and of the trainer's wait in it."""
    row = json.loads(described)
    played = _workload(row, efficiency)
    shape, gpu = MODELS[row["model"]], GPUS[row["gpu"]]
    width = row.get("tp") or next(
        iter(engine_widths(shape, gpu, context=row["context"], efficiency=efficiency))
    )
    engines = row.get("engines") or row.get("engine_gpus", row["gpus"]) // width
    parts = _parts(row["batch"], engines, row["group"], episodes)
    batch, eta = row["batch"] // parts, row.get("eta", 0)
    trained_s = sum(
        _phase_s(row, played, efficiency, forwards=forwards)
        for forwards in (0, *(1 for _ in range(row.get("forwards", 0))))
    )
    trainer = _trainer(row, played, efficiency, passes=efficiency.train_passes)
    setup = Setup(
        rules=FlowRules(
            RolloutSection(
                batch=batch,
                group_size=row["group"],
                max_staleness=eta,
                max_inflight=(eta + 1) * batch,
            )
        ),
        workload=played,
        engine=engine_speed(shape, gpu, tp=width, efficiency=efficiency),
        trainer=TrainerSpeed(0.0, fixed_s=trained_s, publish_s=trainer.whole_publish_s),
        num_engines=engines // parts,
    )
    if eta == 0 and "engines" not in row and "engine_gpus" not in row:
        waited_s = simulated_steps(replace(setup, is_colocated=True), steps=1)[0].waited_s
        return waited_s + trained_s + trainer.whole_publish_s + setup.engine.swap_s, waited_s
    forecast = simulate(setup, steps=ASYNC_STEPS + WARM + eta, warm=WARM + eta)
    return forecast.step_s, forecast.waited_s


def _parts(batch: int, engines: int, group: int, episodes: int) -> int:
    """The number of equal parts into which batch and engines are divided for a simulation."""
    parts = 1
    while (
        batch // parts > episodes
        and engines % (2 * parts) == 0
        and batch % (2 * parts * group) == 0
    ):
        parts *= 2
    return parts
