"""LoRA through peft: small trained matrices beside frozen weights. No other module knows about adapters.

A target layer computes `W x + s B A x` with `s = alpha / rank`. `W` never changes, `A` and `B` are trained. `B` begins
with zeros, so that the adapted model begins as its base. Any model, adapted or not, has two sets of tensors:

* the trained ones, which the optimiser and checkpoints hold;
* the served ones, which engines and exports hold under the names of a plain checkpoint. The served
  tensor of a target layer is `W + s B A`, merged when it is read. The served tensors of experts are
  parts of one trained tensor (`models/experts.py`).
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from areal_sdk.algorithms.batch import Batch
from areal_sdk.config import LoraSection
from areal_sdk.fsdp.collectives import full
from areal_sdk.models.checkpoint import stored_dtypes
from areal_sdk.models.experts import StoredPart, stored_parts
from areal_sdk.models.families import adapted_layers

_A, _B = ".lora_A.weight", ".lora_B.weight"
_OWN_NAME = ".default"
"""peft's name for the only adapter of a model, inside the names of its parameters."""
_BASE = ".base_layer"


def add_adapter(
    model: nn.Module, lora: LoraSection, model_dir: Path, *, seed: int, dtype: torch.dtype
) -> None:
    """Freeze `model`, the checkpoint of `model_dir`, and give it an adapter. Every rank draws the same one.

    The matrices that the adapter adds to, and the experts, are kept in `dtype`, the type of the computation, if the
    files hold them in it.
    """
    from peft import inject_adapter_in_model

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(_peft_config(lora, model_dir), model)
    model.eval()
    _draw(model, seed)
    stored = stored_dtypes(model_dir)
    for weight in served_weights(model):
        is_matrix = weight.a is not None or len(weight.parts) > 1
        held = {stored[part.name] for part in weight.parts}
        if is_matrix and held == {str(dtype).removeprefix("torch.")}:
            weight.base.data = weight.base.data.to(dtype)


def _draw(model: nn.Module, seed: int) -> None:
    """Give the adapters of a model on the device "meta" the values that peft would draw for a model with memory."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(like: Tensor) -> nn.Parameter:
        tensor = torch.empty(like.shape)
        return nn.Parameter(nn.init.kaiming_uniform_(tensor, a=math.sqrt(5), generator=generator))

    for layer in _layers(model):
        a, b = layer.lora_A["default"], layer.lora_B["default"]
        if a.weight.is_meta:
            drawn(a.weight), drawn(b.weight)  # as linear layers, before they are an adapter
            a.weight, b.weight = drawn(a.weight), nn.Parameter(torch.zeros(b.weight.shape))


def trained_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """The trained parameters by name: `A` and `B` of each target, and others that are not frozen."""
    return {
        name.replace(_OWN_NAME, ""): parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


@dataclass(frozen=True, slots=True)
class ServedWeight:
    """A parameter as engines hold it: as one tensor, or as several that are parts of it."""

    base: Tensor
    parts: tuple[StoredPart, ...]
    a: Tensor | None = None
    b: Tensor | None = None
    scaling: float = 0.0

    @classmethod
    def alone(cls, name: str, tensor: Tensor) -> "ServedWeight":
        """A parameter that engines hold as it is, under `name`."""
        return cls(tensor, (StoredPart(name, tuple(tensor.shape)),))

    @property
    def is_changed(self) -> bool:
        """Whether the parameter may differ from the checkpoint that the run began with."""
        return self.a is not None or self.base.requires_grad

    def gathered(self) -> "ServedWeight":
        """The parameter gathered from all shards. A collective."""
        if self.a is None or self.b is None:
            return replace(self, base=full(self.base.detach()))
        return replace(
            self,
            base=full(self.base.detach()),
            a=full(self.a.detach()),
            b=full(self.b.detach()),
        )

    def merged(self) -> Iterator[tuple[str, Tensor]]:
        """The plain tensors by name. They are views if no adapter is added, else new tensors in float32."""
        whole = self.base
        if self.a is not None and self.b is not None:
            whole = self.base.float() + (self.b @ self.a) * self.scaling
        for part in self.parts:
            yield part.name, whole[part.place]


def served_weights(model: Any, *, prefix: str = "") -> list[ServedWeight]:
    """All parameters of a transformers model; tied ones once. `prefix` goes before the names of its tensors."""
    parameters = {
        name.replace(_OWN_NAME, ""): parameter for name, parameter in model.named_parameters()
    }
    served = []
    for name, parameter in parameters.items():
        if name.endswith((_A, _B)):
            continue
        plain = f"{prefix}{name.replace(_BASE, '')}"
        parts = stored_parts(model.config.model_type, plain, parameter.shape)
        weight = ServedWeight(parameter, parts)
        layer = name.partition(f"{_BASE}.weight")[0]
        if f"{layer}{_A}" in parameters:
            weight = replace(
                weight,
                a=parameters[f"{layer}{_A}"],
                b=parameters[f"{layer}{_B}"],
                scaling=float(model.get_submodule(layer).scaling["default"]),
            )
        served.append(weight)
    return served


@contextmanager
def dropout(model: nn.Module) -> Iterator[None]:
    """Have the adapter drop a random share of its inputs within this block (`trainer.lora.dropout`)."""
    for layer in _layers(model):
        layer.lora_dropout.train()
    try:
        yield
    finally:
        for layer in _layers(model):
            layer.lora_dropout.eval()


class WithoutAdapter:
    """The policy without its adapter: a reference that takes no memory."""

    def __init__(self, policy: nn.Module) -> None:
        self._policy = policy

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logprobs and entropies under the base model."""
        with _disabled(self._policy):
            found: tuple[Tensor, Tensor] = self._policy(batch)
        return found


@contextmanager
def _disabled(model: nn.Module) -> Iterator[None]:
    # peft's own switch also freezes the adapter, and FSDP notes at the first forward what is frozen.
    for layer in _layers(model):
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in _layers(model):
            layer._disable_adapters = False


def merged_files(
    model_dir: Path, lora: LoraSection, adapter: Mapping[str, Tensor]
) -> Iterator[ServedWeight]:
    """The weights that engines hold for a saved adapter: each tensor of the base with its part of the adapter."""
    heads = {name: tensor for name, tensor in adapter.items() if not name.endswith((_A, _B))}
    for path in sorted(model_dir.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                if heads and name == "lm_head.weight":
                    continue  # a reward model has its own
                layer = name.removesuffix(".weight")
                a, b = adapter.get(f"{layer}{_A}"), adapter.get(f"{layer}{_B}")
                plain = ServedWeight.alone(name, file.get_tensor(name))
                yield replace(plain, a=a, b=b, scaling=lora.alpha / lora.rank)
    for name, tensor in heads.items():
        yield ServedWeight.alone(name, tensor)


def write_adapter(
    directory: Path, weights: Mapping[str, Tensor], lora: LoraSection, base: Path
) -> None:
    """Write the adapter in `weights` as peft does: `PeftModel.from_pretrained(base, directory)` loads it."""
    config = _peft_config(lora, base)
    heads = [name.removesuffix(".weight") for name in weights if not name.endswith((_A, _B))]
    if heads:
        config.task_type, config.modules_to_save = "SEQ_CLS", heads
    config.target_modules = sorted(config.target_modules)
    config.base_model_name_or_path = str(base)
    config.inference_mode = True
    config.save_pretrained(directory)
    tensors = {f"base_model.model.{name}": tensor for name, tensor in weights.items()}
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})


def _peft_config(lora: LoraSection, model_dir: Path) -> Any:
    from peft import LoraConfig

    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=adapted_layers(model_dir, lora.targets),
        task_type="CAUSAL_LM",
    )


def _layers(model: nn.Module) -> list[Any]:
    """The layers that have an adapter."""
    return [module for module in model.modules() if hasattr(module, "lora_A")]
