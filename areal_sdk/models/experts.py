"""The names that checkpoints give to the experts of a layer, and the place of each in a parameter.

Imports no torch. A checkpoint and an engine hold each matrix of each expert by itself. transformers keeps
those of a layer in two parameters (E experts, H hidden, I inner):

    experts.gate_up_proj  [E, 2 I, H]  the rows of the gate, then those of the other input matrix
    experts.down_proj     [E, H, I]

So a stored tensor is a part of a parameter. Code that loads, publishes, exports or checks weights asks
`stored_parts` which parts a parameter has.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A tensor of a checkpoint: `parameter[place]`."""

    name: str
    shape: tuple[int, ...]
    place: tuple[int | slice, ...] = ()
    """Place in the parameter: the expert, and the rows of its matrix if not all are meant. Empty:
    the whole parameter."""


@dataclass(frozen=True, slots=True)
class _Names:
    """The names in a family's checkpoints for the parts of its experts."""

    block: str
    gate: str
    up: str
    down: str


_USUAL = _Names("mlp", "gate_proj", "up_proj", "down_proj")
_NAMES: Mapping[str, _Names] = {
    "mixtral": _Names("block_sparse_moe", "w1", "w3", "w2"),
    "olmoe": _USUAL,
    "qwen2_moe": _USUAL,
    "qwen3_moe": _USUAL,
}
"""The trained families that have experts."""

_PARAMETER = re.compile(
    r"(?P<before>.*\.)mlp\.(?P<which>experts\.gate_up_proj|experts\.down_proj|gate\.weight)"
)


def stored_parts(family: str, name: str, shape: Sequence[int]) -> tuple[StoredPart, ...]:
    """The tensors of a checkpoint that make up parameter `name` of a transformers model.

    >>> for part in stored_parts("mixtral", "layers.0.mlp.experts.gate_up_proj", (2, 6, 4))[:2]:
    ...     print(part.name, part.shape, part.place)
    layers.0.block_sparse_moe.experts.0.w1.weight (3, 4) (0, slice(0, 3, None))
    layers.0.block_sparse_moe.experts.0.w3.weight (3, 4) (0, slice(3, 6, None))
    >>> [part.name for part in stored_parts("qwen3_moe", "layers.0.mlp.gate.weight", (2, 4))]
    ['layers.0.mlp.gate.weight']
    """
    names, match = _NAMES.get(family), _PARAMETER.fullmatch(name)
    if names is None or match is None:
        return (StoredPart(name, tuple(shape)),)
    block = f"{match['before']}{names.block}"
    if match["which"] == "gate.weight":
        return (StoredPart(f"{block}.gate.weight", tuple(shape)),)
    num_experts, num_rows, width = shape
    rows = {names.down: slice(0, num_rows)}
    if match["which"] == "experts.gate_up_proj":
        inner = num_rows // 2
        rows = {names.gate: slice(0, inner), names.up: slice(inner, num_rows)}
    return tuple(
        StoredPart(
            f"{block}.experts.{expert}.{word}.weight", (own.stop - own.start, width), (expert, own)
        )
        for expert in range(num_experts)
        for word, own in rows.items()
    )


def is_routed(family: str, stored_name: str) -> bool:
    """Whether a tensor of a checkpoint belongs to an expert or to the router.

    >>> is_routed("qwen2_moe", "model.layers.0.mlp.experts.7.up_proj.weight")
    True
    >>> is_routed("qwen2_moe", "model.layers.0.mlp.shared_expert.up_proj.weight")
    False
    """
    names = _NAMES.get(family)
    if names is None:
        return False
    return re.search(rf"\.{names.block}\.(gate|experts\.\d+)\.", stored_name) is not None


@dataclass(frozen=True, slots=True)
class Mixture:
    """The routed part of a layer, as config.json describes it."""

    num_experts: int
    chosen: int
    """Experts that a token passes."""
    inner: int
    """Width of an expert."""
    shared_inner: int = 0
    """Width of the part beside the experts that every token passes; 0: no such part."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Mixture | None":
        """The experts of a model by its configuration; None for a dense model."""
        family = config.get("model_type")
        if family not in _NAMES:
            return None
        shared = config.get("shared_expert_intermediate_size") if family == "qwen2_moe" else None
        return cls(
            num_experts=int(config.get("num_experts") or config["num_local_experts"]),
            chosen=int(config["num_experts_per_tok"]),
            inner=int(config.get("moe_intermediate_size") or config["intermediate_size"]),
            shared_inner=int(shared or 0),
        )
