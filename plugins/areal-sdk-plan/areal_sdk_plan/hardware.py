"""Speeds from a table of hardware, where there is no run to calibrate from.

    decoding step = (weights + keys and values of all requests) / bandwidth + arithmetic + host + all-reduce
    training step = arithmetic + traffic of activations + collectives + stragglers + host

The shares of a maker's figures that are reached are fitted to published runs, by `benchmarks/plan.py --fit`
(docs/scaling.md). A calibration from a run is better.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from areal_sdk import ConfigError
from areal_sdk.shapes import ModelShape
from areal_sdk_plan.speeds import NODE, Collectives, DecodeCurve, EngineSpeed, TrainerSpeed

BYTES = 2
"""Size of a weight, a key or a value: bfloat16."""


@dataclass(frozen=True, slots=True)
class GpuKind:
    """A kind of GPU, by its maker's figures."""

    tflops: float
    """Dense bfloat16."""
    bandwidth_gb_s: float
    memory_gb: float
    link_gb_s: float = 32.0
    """Gigabytes per second to the other GPUs of a node, one way."""
    network_gb_s: float = 25.0
    """Gigabytes per second from a node to others, all its cards together, one way. This is an
    assumption: the network is bought apart."""


GPUS = {
    "a100": GpuKind(312.0, 2039.0, 80.0, 300.0, 200.0),
    "a800": GpuKind(312.0, 2039.0, 80.0, 200.0, 200.0),
    "h20": GpuKind(148.0, 4000.0, 96.0, 450.0, 400.0),
    "h100": GpuKind(989.0, 3350.0, 80.0, 450.0, 400.0),
    "h800": GpuKind(989.0, 3350.0, 80.0, 200.0, 400.0),
    "h200": GpuKind(989.0, 4800.0, 141.0, 450.0, 400.0),
    "b200": GpuKind(2250.0, 8000.0, 180.0, 900.0, 400.0),
    "b300": GpuKind(2250.0, 8000.0, 288.0, 900.0, 800.0),
    "mi300x": GpuKind(1307.0, 5300.0, 192.0, 448.0, 400.0),
    "mi325x": GpuKind(1307.0, 6000.0, 256.0, 448.0, 400.0),
    "a10": GpuKind(125.0, 600.0, 24.0),
    "a6000": GpuKind(155.0, 768.0, 48.0),
    "l4": GpuKind(121.0, 300.0, 24.0),
    "l40s": GpuKind(362.0, 864.0, 48.0),
    "3090": GpuKind(71.0, 936.0, 24.0),
    "4090": GpuKind(165.0, 1008.0, 24.0),
    "5090": GpuKind(209.0, 1792.0, 32.0, 64.0),
}


@dataclass(frozen=True, slots=True)
class Efficiencies:
    """Shares of the makers' figures that are reached, and times beside them. The first eight are fitted."""

    arithmetic: float = 0.605
    """Share of the arithmetic that large matrices reach, in training, prefill and decoding."""
    traffic_bytes: float = 99.9
    """Bytes of memory traffic in a training step for each element of a token's activations."""
    bandwidth: float = 0.424
    """Share of the memory's bandwidth that decoding reaches."""
    layer_s: float = 0.000283
    """Seconds of a decoding step for each layer: launches and small kernels."""
    request_s: float = 2.08e-05
    """Seconds of a decoding step for each request: scheduling, sampling, its text."""
    episode_s: float = 0.00297
    """Seconds of a training step for each episode, which no further GPU shortens."""
    update_s: float = 1.04
    """Seconds of each optimiser update beside arithmetic and collectives."""
    publish_gb_s: float = 2.55
    """Gigabytes of weights a second: half of them while each node of the trainer sends its part, and the trainer
    waits; half while each GPU of an engine loads its part, and the engine waits."""
    straggler: float = 0.0193
    """Relative time that each doubling of the ranks adds, because all wait for the slowest."""
    collective: float = 0.7
    """Share of links and network that collectives reach."""
    memory: float = 0.85
    """Share of the memory for weights, keys and values of an engine."""
    train_passes: float = 4.0
    """Forward passes' worth of arithmetic in a step: forward, backward (2), activations again (1)."""


HOP_S = 5e-6
"""Seconds of a collective for each rank of its ring."""
REDUCE_S, FAR_REDUCE_S = 12e-6, 50e-6
"""Seconds of the all-reduce of an engine's GPUs, twice a layer: in a node, and between nodes."""
MICROBATCH = 32_768
"""Number of tokens after which a rank gathers the weights once more."""


def engine_speed(
    shape: ModelShape,
    gpu: GpuKind,
    *,
    tp: int,
    efficiency: Efficiencies,
    max_slots: int = 256,
    weight_bytes: float = BYTES,
) -> EngineSpeed:
    """One server of `tp` GPUs."""
    weights = shape.parameters * weight_bytes
    room = efficiency.memory * gpu.memory_gb * 1e9 * tp - weights
    kv_bytes = kv_bytes_per_token(shape)
    bandwidth = gpu.bandwidth_gb_s * 1e9 * tp * efficiency.bandwidth
    arithmetic = gpu.tflops * 1e12 * tp * efficiency.arithmetic * (BYTES / weight_bytes)
    reduce_s, reduce_token_s = _reduce_s(shape, gpu, tp=tp, efficiency=efficiency)
    fixed_s = efficiency.layer_s * shape.layers + reduce_s
    token_s = 2.0 * shape.active / arithmetic + reduce_token_s

    def step_s(requests: int) -> float:
        read_s = _read_weights(shape, requests) * weight_bytes / bandwidth
        return fixed_s + read_s + requests * (token_s + efficiency.request_s)

    sizes = sorted({1, *(n for n in (4, 16, 64, 256) if n < max_slots), max(2, max_slots)})
    return EngineSpeed(
        DecodeCurve(tuple((n, step_s(n)) for n in sizes)),
        prefill_s=token_s,
        kv_read_s=kv_bytes / bandwidth,
        max_slots=max_slots,
        kv_tokens=max(0, int(room / kv_bytes)),
        swap_s=0.5 * weights / tp / (efficiency.publish_gb_s * 1e9),
    )


def _read_weights(shape: ModelShape, requests: int) -> float:
    """Weights that a decoding step reads: of the experts those that some request chose."""
    if not shape.mixture:
        return shape.parameters
    experts = shape.layers * shape.mixture.num_experts * shape.expert
    missed = (1.0 - shape.mixture.chosen / shape.mixture.num_experts) ** requests
    return shape.parameters - experts * missed


def _reduce_s(
    shape: ModelShape, gpu: GpuKind, *, tp: int, efficiency: Efficiencies
) -> tuple[float, float]:
    """Seconds of a step and of each token for the sums over the GPUs of an engine."""
    if tp == 1:
        return 0.0, 0.0
    latency_s = REDUCE_S if tp <= NODE else FAR_REDUCE_S
    link = gpu.link_gb_s if tp <= NODE else min(gpu.link_gb_s, gpu.network_gb_s)
    moved = 2 * (tp - 1) / tp * shape.hidden * BYTES
    sums = 2 * shape.layers
    return sums * latency_s, sums * moved / (link * 1e9 * efficiency.collective)


def trainer_speed(
    shape: ModelShape,
    gpu: GpuKind,
    *,
    ranks: int,
    efficiency: Efficiencies,
    row: float = 0.0,
    updates: int = 1,
) -> TrainerSpeed:
    """The speed of all ranks together, one GPU each. `row`: length of the row that a typical token is in."""
    arithmetic = gpu.tflops * 1e12 * efficiency.arithmetic
    forward = 2.0 * shape.active + 2.0 * row * shape.queries * shape.layers
    traffic = efficiency.traffic_bytes * activations(shape) / (gpu.bandwidth_gb_s * 1e9)
    passes = efficiency.train_passes
    weights = shape.parameters * BYTES
    moved = 3.0 * weights / (efficiency.collective * 1e9)
    return TrainerSpeed(
        token_s=passes * forward / arithmetic + passes / 4.0 * traffic,
        fixed_s=efficiency.update_s * updates,
        episode_s=efficiency.episode_s,
        ranks=ranks,
        straggler=efficiency.straggler,
        collectives=Collectives(
            inside_s=moved / gpu.link_gb_s,
            between_s=moved / min(gpu.link_gb_s, gpu.network_gb_s),
            hop_s=3 * shape.layers * HOP_S,
            send_s=0.5 * weights / (efficiency.publish_gb_s * 1e9),
            tokens=MICROBATCH,
            updates=updates,
        ),
    )


def activations(shape: ModelShape) -> int:
    """Elements of a token's activations that are written or read one by one, its logits among them."""
    mixture = shape.mixture
    inner = shape.intermediate + (mixture.chosen * mixture.inner if mixture else 0)
    return shape.layers * (8 * shape.hidden + 3 * inner) + shape.vocabulary


def kv_bytes_per_token(shape: ModelShape) -> int:
    """Keys and values of all layers.

    >>> kv_bytes_per_token(SHAPES["7B"])
    57344
    """
    return 2 * shape.layers * shape.keys * BYTES


def training_gpus(shape: ModelShape, gpu: GpuKind) -> int:
    """The fewest GPUs whose memory holds the training state (16 bytes a parameter) and activations."""
    usable = TRAINING_ROOM * gpu.memory_gb * 1e9
    return max(1, -(-TRAINING_BYTES * shape.parameters // int(usable)))


TRAINING_BYTES = 16
"""Bytes of each parameter: master weights, two moments, gradient."""
TRAINING_ROOM = 0.8
"""Share of the memory for these; the rest holds activations."""


def engine_widths(
    shape: ModelShape, gpu: GpuKind, *, context: int, efficiency: Efficiencies
) -> Sequence[int]:
    """Numbers of GPUs that an engine may have: each divides the heads, and has memory for the longest episode.

    A width beyond one node is named only where no smaller one holds the model.
    """
    found = [
        tp
        for tp in (1, 2, 4, 8, 16, 32, 64)
        if parts_heads(shape, tp)
        and engine_speed(shape, gpu, tp=tp, efficiency=efficiency).kv_tokens >= context
    ]
    if not found:
        raise ConfigError(
            f"no engine of up to 64 GPUs with {gpu.memory_gb:g} GB holds {shape.parameters * BYTES / 1e9:.0f} GB "
            f"of weights and an episode of {context:,} tokens: lower --context, or take a larger --gpu"
        )
    return [tp for tp in found if tp <= NODE] or found[:1]


def parts_heads(shape: ModelShape, tp: int) -> bool:
    """Whether `tp` GPUs share the heads evenly; key heads may be copied.

    >>> [tp for tp in range(1, 9) if parts_heads(SHAPES["7B"], tp)]
    [1, 2, 4]
    """
    copies = tp % shape.key_heads == 0 or shape.key_heads % tp == 0
    return shape.heads % tp == 0 and copies


def find_gpu(name: str) -> GpuKind:
    """A kind of GPU by its name, with or without its maker's words.

    >>> find_gpu("NVIDIA RTX 4090") is find_gpu("4090")
    True
    """
    words = name.lower().replace("-", " ").replace("_", " ").split()
    for word in (*words, "".join(words), *(word.removeprefix("rtx") for word in words)):
        if word in GPUS:
            return GPUS[word]
    raise ConfigError(f"unknown GPU {name!r}; known: {', '.join(GPUS)}")
