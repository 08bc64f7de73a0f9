"""The parts to plan with, and what is assumed of them: from runs, or from a table of hardware."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from areal_sdk import ConfigError
from areal_sdk.flow import FlowRules, RolloutSection
from areal_sdk.shapes import ModelShape, find_shape
from areal_sdk_plan.calibration.speeds_of_runs import Calibration, calibrate, on_other_machines
from areal_sdk_plan.hardware import (
    Efficiencies,
    GpuKind,
    engine_speed,
    engine_widths,
    find_gpu,
    parts_heads,
    trainer_speed,
    training_gpus,
)
from areal_sdk_plan.simulation.setup import Setup
from areal_sdk_plan.speeds import NODE
from areal_sdk_plan.splits import Parts, Wanted, again, best_split
from areal_sdk_plan.workload import LongTail, Workload

BATCH, GROUP_SIZE, SLOTS = 512, 16, 256
SPREAD = 0.8
"""Standard deviation of the logarithm of output lengths and tool times."""
ANSWER = 200
"""Tokens that a tool's answer adds."""
MTBF_H = 50_000.0
"""Hours between failures of a GPU, from 419 unexpected interruptions in 54 days on 16,384 GPUs
(arXiv 2407.21783)."""


@dataclass(frozen=True, slots=True)
class Described:
    """Episodes in words: tokens, turns, seconds."""

    prompt: int = 512
    output: int = 1000
    """Sampled tokens of a turn: the median."""
    turns: int = 1
    tool_s: float = 0.0
    context: int = 8192
    group_size: int = GROUP_SIZE
    spread: float = SPREAD
    """Standard deviation of the logarithm of lengths and tool times."""

    def workload(self) -> Workload:
        if self.prompt >= self.context:
            raise ConfigError(
                f"--prompt {self.prompt} leaves no token to sample in --context {self.context}: raise the "
                "context, or lower the prompt"
            )
        return Workload.described(
            output=LongTail(self.output, self.spread, least=8.0),
            prompt=self.prompt,
            turns=self.turns,
            tool=LongTail(self.tool_s, self.spread),
            num_answered=ANSWER if self.turns > 1 else 0,
            group_size=self.group_size,
            context=self.context,
        )


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
    setup = on_other_machines(calibration.setup)
    parts = Parts(setup, {width: setup.engine}, least_ranks=ranks, gpu_mtbf_h=MTBF_H)
    assumptions = [
        *calibration.notes,
        "a GPU is what one engine or one trainer rank of the run had, and each part has its own",
        f"the trainer needs the {ranks} ranks of the run, or more; its work is split evenly among more",
        "the agents, the gateway and the rewards have cores enough",
        *_common(parts),
    ]
    return PartsWithAssumptions(parts, assumptions, calibration)


def from_hardware(
    model: str | ModelShape,
    gpu: str | GpuKind,
    *,
    workload: Described,
    tp: int | None = None,
    slots: int | None = None,
    minibatches: int = 1,
    efficiency: Efficiencies | None = None,
) -> PartsWithAssumptions:
    """Parts as fast as makers' figures and the shares of them that are usually reached."""
    shape = find_shape(model) if isinstance(model, str) else model
    kind = find_gpu(gpu) if isinstance(gpu, str) else gpu
    efficiency = efficiency or Efficiencies()
    slots = slots or SLOTS
    played = workload.workload()
    engines = {
        width: engine_speed(shape, kind, tp=width, efficiency=efficiency, max_slots=slots)
        for width in _widths(shape, kind, tp=tp, context=workload.context, efficiency=efficiency)
    }
    ranks = training_gpus(shape, kind)
    size = workload.group_size
    batch = math.ceil(BATCH / size) * size
    rollout = RolloutSection(batch=batch, group_size=size, max_staleness=2, max_inflight=2 * batch)
    trainer = trainer_speed(
        shape,
        kind,
        ranks=ranks,
        efficiency=efficiency,
        row=played.row_of_token(),
        updates=minibatches,
    )
    setup = Setup(
        rules=FlowRules(rollout),
        workload=played,
        engine=next(iter(engines.values())),
        trainer=trainer,
    )
    parts = Parts(setup, engines, least_ranks=ranks, gpu_mtbf_h=MTBF_H)
    pools = ", ".join(f"{speed.kv_tokens:,} ({width})" for width, speed in engines.items())
    assumptions = [
        *_cuts(workload, played),
        f"{gpu}: {kind.tflops:g} TFLOP/s in bfloat16, {kind.bandwidth_gb_s:g} GB/s, {kind.memory_gb:g} GB, "
        f"{kind.link_gb_s:g} GB/s to other GPUs of a node of {NODE}, {kind.network_gb_s:g} GB/s from a node",
        f"reached: {efficiency.arithmetic:.0%} of the arithmetic, {efficiency.bandwidth:.0%} of the bandwidth "
        f"in decoding, {efficiency.collective:.0%} of links and network",
        f"a step of the trainer: {efficiency.train_passes:g} forward passes' arithmetic, "
        f"{efficiency.traffic_bytes:.3g} bytes of traffic for each element of activations, "
        f"{efficiency.episode_s * 1e3:.2g} ms an episode, {efficiency.update_s:.2g} s for each of "
        f"{minibatches} updates, {efficiency.straggler:.1%} more for each doubling of the ranks",
        f"at least {ranks} GPUs hold the state of the trainer",
        f"a decoding step: {efficiency.layer_s * 1e3:.2g} ms a layer and {efficiency.request_s * 1e6:.2g} us "
        f"a request beside the model; {slots} requests together",
        f"tokens of keys and values in an engine (GPUs): {pools}",
        f"new weights: each node of the trainer sends its part at {efficiency.publish_gb_s:.2g} GB/s, and each GPU "
        "of an engine loads its part",
        f"lengths and tool times are log-normal, sigma {workload.spread:g}; a tool answers {ANSWER} tokens",
        f"groups of {workload.group_size}; the prompt of a group is cached by each engine",
        *_common(parts),
    ]
    return PartsWithAssumptions(parts, assumptions)


def as_measured(
    parts: Parts,
    tokens_per_s: float,
    *,
    gpus: int,
    wanted: Wanted,
    note: Callable[[str], None],
) -> Parts:
    """The same parts, so much faster or slower that `gpus` GPUs train the measured tokens a second."""
    split = best_split(parts, gpus, wanted=wanted, note=note)
    factor, slower = 1.0, parts
    for _ in range(ROUNDS):  # tools, and an engine that waits, do not become slower
        factor *= split.tokens_per_s / tokens_per_s
        slower = replace(
            parts,
            setup=replace(parts.setup, trainer=parts.setup.trainer.slower(factor)),
            engines={width: engine.slower(factor) for width, engine in parts.engines.items()},
        )
        split = again(slower, split)
    return slower


ROUNDS = 3


def _widths(
    shape: ModelShape, gpu: GpuKind, *, tp: int | None, context: int, efficiency: Efficiencies
) -> Sequence[int]:
    """Numbers of GPUs of an engine to try; ConfigError where the given one is impossible."""
    if tp is not None and not parts_heads(shape, tp):
        raise ConfigError(
            f"--tp {tp} does not share {shape.heads} heads and {shape.key_heads} key heads evenly: take "
            + ", ".join(str(width) for width in (1, 2, 4, 8, 16) if parts_heads(shape, width))
        )
    widths = engine_widths(shape, gpu, context=context, efficiency=efficiency)
    if tp is None:
        return widths
    pool = engine_speed(shape, gpu, tp=tp, efficiency=efficiency).kv_tokens
    if pool < context:
        raise ConfigError(
            f"an engine of --tp {tp} has room for {pool:,} tokens of keys and values, but an episode may "
            f"have {context:,}: --tp {widths[0]} is enough, or lower --context"
        )
    return [tp]


def _cuts(asked: Described, played: Workload) -> list[str]:
    """A line where the context leaves episodes shorter than they were described."""
    turns, tokens = played.mean_turns(), played.mean_sampled()
    if turns >= asked.turns and asked.prompt + asked.output < asked.context:
        return []
    return [
        f"--context {asked.context:,} cuts episodes: of --turns {asked.turns:,} and --output {asked.output:,} they "
        f"play {turns:.3g} turns with {tokens:,.0f} tokens, on average"
    ]


def _common(parts: Parts) -> list[str]:
    losses = parts.losses(ranks=1, width=1)
    return [
        f"a GPU, or what it hangs on, fails every {parts.gpu_mtbf_h:,.0f} h; an engine is back after "
        f"{losses.engine_restart_s:g} s, the trainer after {losses.trainer_restart_s:g} s, and it makes "
        f"the steps since the last checkpoint (every {losses.checkpoint_every}) again",
        "evaluations and checkpoints hold nothing back",
        "where engines and trainer are the same GPUs, they lend each other the memory at no cost",
    ]
