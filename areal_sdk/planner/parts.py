"""The parts to plan with, and what is assumed of them: from runs, or from a table of hardware."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from areal_sdk.config import RolloutSection
from areal_sdk.planner.calibration.speeds_of_runs import Calibration, calibrate, on_other_machines
from areal_sdk.planner.hardware import (
    Efficiencies,
    engine_speed,
    find_gpu,
    find_model,
    smallest_tp,
    trainer_speed,
    training_gpus,
)
from areal_sdk.planner.simulation.books import BookRules
from areal_sdk.planner.simulation.setup import Setup
from areal_sdk.planner.splits import Parts
from areal_sdk.planner.workload import LongTail, Workload
from areal_sdk.rollout.staleness import StalenessGate

BATCH, GROUP_SIZE = 512, 16
SPREAD = 0.8
"""Standard deviation of the logarithm of output lengths and tool times."""
ANSWER = 200
"""Tokens that a tool's answer adds."""
MTBF_H = 50_000.0
"""419 unexpected interruptions in 54 days on 16,384 GPUs (arXiv 2407.21783): hours for each of a GPU."""


@dataclass(frozen=True, slots=True)
class Described:
    """Episodes in words: tokens, turns, seconds."""

    prompt: int
    output: int
    turns: int
    tool_s: float
    context: int


@dataclass(frozen=True, slots=True)
class PartsWithAssumptions:
    parts: Parts
    assumptions: Sequence[str]
    calibration: Calibration | None = None


def from_runs(
    paths: Sequence[Path], *, tp: int | None = None, slots: int | None = None
) -> PartsWithAssumptions:
    """Parts as fast as those of recorded runs, each on a machine of its own."""
    calibration = calibrate(paths, slots=slots)
    config = calibration.runs[0].config
    width = tp or int(calibration.runs[0].engine_options.get("tp_size", 1))
    ranks = int(config.get("trainer", {}).get("ranks", 1))
    parts = Parts(
        on_other_machines(calibration.setup),
        gpus_per_engine=width,
        least_ranks=ranks,
        gpu_mtbf_h=MTBF_H,
    )
    assumptions = [
        *calibration.notes,
        "a GPU is what one engine or one trainer rank of the run had, and each part has its own",
        f"the trainer needs the {ranks} ranks of the run, or more; its work is split evenly among more",
        "the agents, the gateway and the rewards have cores enough",
        *_common(parts),
    ]
    return PartsWithAssumptions(parts, assumptions, calibration)


def from_hardware(
    model: str,
    gpu: str,
    *,
    workload: Described,
    tp: int | None = None,
    slots: int | None = None,
    efficiency: Efficiencies | None = None,
) -> PartsWithAssumptions:
    """Parts as fast as makers' figures and the shares of them that are usually reached."""
    shape, kind, efficiency = find_model(model), find_gpu(gpu), efficiency or Efficiencies()
    width = tp or smallest_tp(shape, kind, efficiency=efficiency)
    ranks = training_gpus(shape, kind)
    engine = engine_speed(shape, kind, tp=width, efficiency=efficiency, max_slots=slots or 256)
    setup = Setup(
        rules=BookRules(
            StalenessGate(batch=BATCH, max_staleness=2, max_inflight=2 * BATCH),
            RolloutSection(group_size=GROUP_SIZE),
        ),
        workload=Workload.described(
            output=LongTail(workload.output, SPREAD, least=8.0),
            prompt=workload.prompt,
            turns=workload.turns,
            tool=LongTail(workload.tool_s, SPREAD),
            num_answered=ANSWER if workload.turns > 1 else 0,
            group_size=GROUP_SIZE,
            context=workload.context,
        ),
        engine=engine,
        trainer=trainer_speed(shape, kind, ranks=ranks, efficiency=efficiency),
    )
    parts = Parts(setup, gpus_per_engine=width, least_ranks=ranks, gpu_mtbf_h=MTBF_H)
    assumptions = [
        f"{gpu}: {kind.tflops:g} TFLOP/s in bfloat16, {kind.bandwidth_gb_s:g} GB/s, {kind.memory_gb:g} GB",
        f"reached of the arithmetic: training {efficiency.train:.0%}, prefill {efficiency.prefill:.0%}, "
        f"decoding {efficiency.decode_math:.0%}; of the bandwidth {efficiency.bandwidth:.0%}",
        f"a step of the trainer: {efficiency.train_passes:g} forward passes' arithmetic and "
        f"{efficiency.trainer_overhead_s:g} s; at least {ranks} GPUs hold its state",
        f"an engine: {width} GPUs, {engine.max_slots} requests together, {engine.kv_tokens:,} tokens of "
        f"keys and values, {efficiency.step_overhead_s * 1e3:g} ms a step beside the model",
        f"new weights travel at {efficiency.publish_gb_s:g} GB/s to all engines at once",
        f"lengths and tool times are log-normal, sigma {SPREAD:g}; a tool answers {ANSWER} tokens",
        f"groups of {GROUP_SIZE}; the prompt of a group is cached by each engine",
        *_common(parts),
    ]
    return PartsWithAssumptions(parts, assumptions)


def _common(parts: Parts) -> list[str]:
    losses = parts.losses(ranks=1)
    return [
        f"a GPU, or what it hangs on, fails every {parts.gpu_mtbf_h:,.0f} h; an engine is back after "
        f"{losses.engine_restart_s:g} s, the trainer after {losses.trainer_restart_s:g} s, and it makes "
        f"the steps since the last checkpoint (every {losses.checkpoint_every}) again",
        "evaluations and checkpoints hold nothing back",
        "where engines and trainer are the same GPUs, they lend each other the memory at no cost",
    ]
