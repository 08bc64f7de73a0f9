"""Speeds from a table of hardware, where there is no run to calibrate from.

    decoding step = (weights + keys and values of all requests) / bandwidth + arithmetic + overhead
    prefill, training = arithmetic / (peak * share of the peak that is reached)

The shares are assumptions with names, and every one of them can be given. They come from published
measurements (docs/scaling.md): a calibration from a run is better.
"""

from dataclasses import dataclass
from pathlib import Path

from areal_sdk.errors import ConfigError
from areal_sdk.fsdp.memory.architecture import SHAPES, ModelShape
from areal_sdk.models import resolve_model
from areal_sdk.models.families import read_config
from areal_sdk.planner.speeds import DecodeCurve, EngineSpeed, TrainerSpeed

BYTES = 2
"""Of a weight, a key or a value: bfloat16."""


@dataclass(frozen=True, slots=True)
class GpuKind:
    """A kind of GPU, by its maker's figures."""

    tflops: float
    """Dense bfloat16."""
    bandwidth_gb_s: float
    memory_gb: float


GPUS = {
    "a100": GpuKind(312.0, 2039.0, 80.0),
    "h20": GpuKind(148.0, 4000.0, 96.0),
    "h100": GpuKind(989.0, 3350.0, 80.0),
    "h200": GpuKind(989.0, 4800.0, 141.0),
    "b200": GpuKind(2250.0, 8000.0, 180.0),
}


@dataclass(frozen=True, slots=True)
class Efficiencies:
    """The shares of the maker's figures that are reached. Each is an assumption."""

    train: float = 0.35
    """Of the arithmetic, in a training step on full rows."""
    prefill: float = 0.5
    """Of the arithmetic, in prefill."""
    decode_math: float = 0.5
    """Of the arithmetic, in decoding."""
    bandwidth: float = 0.7
    """Of the memory's bandwidth, in decoding."""
    memory: float = 0.85
    """Of the memory, for weights, keys and values of an engine."""
    step_overhead_s: float = 0.003
    """Of a decoding step: scheduling, sampling, launches."""
    train_passes: float = 4.0
    """Forward passes' worth of arithmetic in a step: forward, backward (2), activations again (1)."""
    trainer_overhead_s: float = 5.0
    """Of a step, whatever its size: batches are planned and sent, the optimiser steps."""
    publish_gb_s: float = 2.0
    """Weights written and loaded again by all engines, each at this rate."""


def engine_speed(
    shape: ModelShape,
    gpu: GpuKind,
    *,
    tp: int,
    efficiency: Efficiencies,
    max_slots: int = 256,
) -> EngineSpeed:
    """One server of `tp` GPUs."""
    weights = shape.parameters * BYTES
    room = efficiency.memory * gpu.memory_gb * 1e9 * tp - weights
    kv_bytes = kv_bytes_per_token(shape)
    if room < kv_bytes * 1024:
        raise ConfigError(
            f"a server of {tp} GPUs with {gpu.memory_gb:g} GB each has no room for "
            f"{weights / 1e9:.0f} GB of weights: raise --tp"
        )
    bandwidth = gpu.bandwidth_gb_s * 1e9 * tp * efficiency.bandwidth
    arithmetic = gpu.tflops * 1e12 * tp
    fixed_s = weights / bandwidth + efficiency.step_overhead_s
    each_s = 2.0 * shape.active / (arithmetic * efficiency.decode_math)
    return EngineSpeed(
        DecodeCurve(((1, fixed_s + each_s), (max_slots, fixed_s + max_slots * each_s))),
        prefill_s=2.0 * shape.active / (arithmetic * efficiency.prefill),
        kv_read_s=kv_bytes / bandwidth,
        max_slots=max_slots,
        kv_tokens=int(room / kv_bytes),
        swap_s=weights / (efficiency.publish_gb_s * 1e9),
    )


def trainer_speed(
    shape: ModelShape, gpu: GpuKind, *, ranks: int, efficiency: Efficiencies
) -> TrainerSpeed:
    """All ranks, each one GPU."""
    arithmetic = gpu.tflops * 1e12 * efficiency.train
    return TrainerSpeed(
        token_s=efficiency.train_passes * 2.0 * shape.active / arithmetic,
        fixed_s=efficiency.trainer_overhead_s,
        ranks=ranks,
        publish_s=shape.parameters * BYTES / (efficiency.publish_gb_s * 1e9),
    )


def kv_bytes_per_token(shape: ModelShape) -> int:
    """Keys and values of all layers.

    >>> kv_bytes_per_token(SHAPES["7B"])
    57344
    """
    return 2 * shape.layers * shape.keys * BYTES


def fixed_part(forward_s: float, step_s: float, *, passes: float) -> float:
    """Of two phases over one batch, the seconds that neither its size nor more GPUs change.

    A forward, and a step with the arithmetic of `passes` forwards: what is not arithmetic is in both.

    >>> fixed_part(15.0, 45.0, passes=4.0)
    5.0
    """
    return (passes * forward_s - step_s) / (passes - 1.0)


def training_gpus(shape: ModelShape, gpu: GpuKind) -> int:
    """The fewest GPUs whose memory holds the training state (16 bytes a parameter) and activations."""
    usable = TRAINING_ROOM * gpu.memory_gb * 1e9
    return max(1, -(-TRAINING_BYTES * shape.parameters // int(usable)))


TRAINING_BYTES = 16
"""Of each parameter: master weights, two moments, gradient."""
TRAINING_ROOM = 0.7
"""Of the memory, for these; the rest holds activations."""


def smallest_tp(shape: ModelShape, gpu: GpuKind, *, efficiency: Efficiencies) -> int:
    """The fewest GPUs (1, 2, 4, 8) that serve the model and keep half of their memory for requests."""
    for tp in (1, 2, 4):
        if shape.parameters * BYTES <= 0.5 * efficiency.memory * gpu.memory_gb * 1e9 * tp:
            return tp
    return 8


def find_model(name: str) -> ModelShape:
    """The shape of a size, of the model in a directory, or of a model on a hub."""
    if name in SHAPES:
        return SHAPES[name]
    local = Path(name).expanduser()
    directory = local if local.is_dir() else resolve_model(name, weights=False)
    return ModelShape.of(read_config(directory))


def find_gpu(name: str) -> GpuKind:
    if name.lower() not in GPUS:
        raise ConfigError(f"unknown GPU {name!r}; known: {', '.join(GPUS)}")
    return GPUS[name.lower()]
