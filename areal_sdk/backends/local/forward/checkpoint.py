"""Checkpoint tensors into the model's fused weights: checked whole first, then copied."""

import hashlib
import json
import mmap
import zlib
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from areal_sdk.backends.local.forward.architecture import Architecture
from areal_sdk.backends.local.forward.model import Model
from areal_sdk.errors import EngineError

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_FLOAT_TYPES = ("F32", "BF16", "F16")
_IGNORED_SUFFIXES = (".rotary_emb.inv_freq",)  # a constant that old checkpoints saved


class _Slice(Protocol):
    def get_shape(self) -> list[int]: ...
    def get_dtype(self) -> str: ...


class _File(Protocol):
    """The part of a `safe_open` handle that is used here."""

    def keys(self) -> list[str]: ...
    def get_slice(self, name: str) -> _Slice: ...
    def get_tensor(self, name: str) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Weights:
    """A checkpoint that was found to fit the model: mapped, not read yet."""

    source: Mapping[str, _File]
    changed: frozenset[str]
    """The tensors to copy; a layer that is stacked from several is copied whole."""

    def copy_into(self, model: Model) -> None:
        with torch.inference_mode():
            _copy(model, self.source, self.changed)


def open_weights(
    path: Path, architecture: Architecture, *, checksum: str = "", base: Path | None = None
) -> Weights:
    """The weights at `path`, a safetensors file or a directory.

    With `base`, the checkpoint that the model was loaded from, `path` holds only what differs from it. An EngineError
    if a name, a shape, a type or the checksum is wrong, so that a copy that begins also ends: a model never has half of
    an update. The file's dtype may differ from the model's. Safe to call in another thread while the model generates.
    """
    files = weight_files(path)
    if checksum:
        _verify_checksum(files, checksum)
    given = source = _open(files, path)
    if base is not None:
        source = {**_open(weight_files(base), base), **given}
    _check(source, architecture, path)
    return Weights(source, frozenset(given))


def _open(files: list[Path], path: Path) -> dict[str, _File]:
    try:
        handles: list[_File] = [safe_open(file, framework="pt") for file in files]
    except (SafetensorError, OSError) as exc:
        raise EngineError(f"cannot read the weights at {path}: {exc}") from exc
    return {name: handle for handle in handles for name in handle.keys()}  # noqa: SIM118


def weight_files(path: Path) -> list[Path]:
    """The safetensors files at `path`."""
    if path.is_file():
        return [path]
    index = path / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        return [path / name for name in names]
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise EngineError(
            f"no weights at {path}: expected a .safetensors file or a directory that holds some "
            "(convert .bin and .gguf checkpoints first, with save_pretrained)"
        )
    return files


def _verify_checksum(files: list[Path], checksum: str) -> None:
    """Raise EngineError unless the bytes of the files, in name order, have this `crc32:<hex>` or `sha256:<hex>`."""
    algorithm, _, expected = checksum.partition(":")
    if algorithm not in ("crc32", "sha256"):
        raise EngineError(f"checksum {checksum!r}: expected crc32:<hex> or sha256:<hex>")
    crc, digest = 0, hashlib.sha256()
    for file in files:
        with (
            file.open("rb") as opened,
            mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as view,
        ):
            if algorithm == "crc32":
                crc = zlib.crc32(view, crc)
            else:
                digest.update(view)
    found = f"{crc:08x}" if algorithm == "crc32" else digest.hexdigest()
    if found != expected.lower():
        raise EngineError(f"the weights at {files[0]} have {algorithm} {found}, not {expected}")


@dataclass(frozen=True, slots=True)
class _Projection:
    """The checkpoint's names of one fused linear layer, without `.weight` / `.bias`."""

    names: tuple[str, ...]
    out_features: tuple[int, ...]
    in_features: int
    has_bias: bool


def _projections(a: Architecture, layer: int) -> dict[str, _Projection]:
    prefix = f"model.layers.{layer}."
    queries, keys = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim

    def names(block: str, *short: str) -> tuple[str, ...]:
        return tuple(f"{prefix}{block}.{name}_proj" for name in short)

    hidden, inner = a.hidden_size, a.intermediate_size
    attention = {
        "qkv": _Projection(
            names("self_attn", "q", "k", "v"), (queries, keys, keys), hidden, a.qkv_bias
        ),
        "output": _Projection(names("self_attn", "o"), (hidden,), queries, a.output_bias),
    }

    def gated(block: str, inner: int) -> dict[str, _Projection]:
        return {
            "gate_up": _Projection(names(block, "gate", "up"), (inner, inner), hidden, a.mlp_bias),
            "down": _Projection(names(block, "down"), (hidden,), inner, a.mlp_bias),
        }

    if a.mixture is None:
        return attention | gated("mlp", inner)
    router = _Projection((f"{prefix}mlp.gate",), (a.mixture.num_experts,), hidden, has_bias=False)
    experts = {
        f"experts.{number}.{name}": projection
        for number in range(a.mixture.num_experts)
        for name, projection in gated(f"mlp.experts.{number}", a.mixture.inner).items()
    }
    return {**attention, "router": router, **experts}


def _norms(a: Architecture, layer: int) -> dict[str, tuple[str, int]]:
    prefix = f"model.layers.{layer}."
    norms = {
        "input_norm": (f"{prefix}input_layernorm.weight", a.hidden_size),
        "mlp_norm": (f"{prefix}post_attention_layernorm.weight", a.hidden_size),
    }
    if a.qk_norm:
        norms["query_norm"] = (f"{prefix}self_attn.q_norm.weight", a.head_dim)
        norms["key_norm"] = (f"{prefix}self_attn.k_norm.weight", a.head_dim)
    return norms


def expected_shapes(a: Architecture) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a checkpoint of this architecture must hold."""
    return dict(_shapes(a))


def _shapes(a: Architecture) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield _EMBEDDING, (a.vocab_size, a.hidden_size)
    for layer in range(a.num_layers):
        for projection in _projections(a, layer).values():
            for name, size in zip(projection.names, projection.out_features, strict=True):
                yield f"{name}.weight", (size, projection.in_features)
                if projection.has_bias:
                    yield f"{name}.bias", (size,)
        for norm, size in _norms(a, layer).values():
            yield norm, (size,)
    yield "model.norm.weight", (a.hidden_size,)
    if not a.tied_embeddings:
        yield _HEAD, (a.vocab_size, a.hidden_size)


def _check(source: Mapping[str, _File], a: Architecture, path: Path) -> None:
    expected = expected_shapes(a)
    optional = {_HEAD} if a.tied_embeddings else set()
    unknown = sorted(
        name
        for name in source.keys() - expected.keys() - optional
        if not name.endswith(_IGNORED_SUFFIXES)
    )
    problems = [f"missing {name}" for name in sorted(expected.keys() - source.keys())]
    problems += [f"unknown {name}" for name in unknown]
    for name in sorted(expected.keys() & source.keys()):
        found = source[name].get_slice(name)
        shape, dtype = tuple(found.get_shape()), found.get_dtype()
        if shape != expected[name]:
            problems.append(f"{name} has shape {list(shape)}, not {list(expected[name])}")
        if dtype not in _FLOAT_TYPES:
            problems.append(f"{name} has dtype {dtype}, not one of {', '.join(_FLOAT_TYPES)}")
    if not problems and not _ties_agree(source, a):
        problems.append(
            "lm_head.weight differs from the embedding, to which config.json ties it "
            "(set tie_word_embeddings to false there)"
        )
    if problems:
        more = f" and {len(problems) - 3} more problems" if len(problems) > 3 else ""
        raise EngineError(
            f"the weights at {path} do not fit the model: {'; '.join(problems[:3])}{more}"
        )


def _ties_agree(source: Mapping[str, _File], a: Architecture) -> bool:
    if not a.tied_embeddings or _HEAD not in source:
        return True
    return torch.equal(source[_HEAD].get_tensor(_HEAD), source[_EMBEDDING].get_tensor(_EMBEDDING))


def _copy(model: Model, source: Mapping[str, _File], changed: Set[str]) -> None:
    def tensor(name: str) -> Tensor:
        return source[name].get_tensor(name)

    def copy(target: Tensor, name: str) -> None:
        if name in changed:
            target.copy_(tensor(name))

    a = model.architecture
    copy(model.embedding, _EMBEDDING)
    for number, layer in enumerate(model.layers):
        for linear, projection in _projections(a, number).items():
            weights = [f"{name}.weight" for name in projection.names]
            biases = [f"{name}.bias" for name in projection.names if projection.has_bias]
            if not changed.isdisjoint((*weights, *biases)):
                layer.linears[linear].load([*map(tensor, weights)], [*map(tensor, biases)])
        for attribute, (name, _) in _norms(a, number).items():
            copy(getattr(layer, attribute), name)
    copy(model.norm, "model.norm.weight")
    head = _EMBEDDING if a.tied_embeddings else _HEAD
    if head in changed:
        model.head.load([tensor(head)])
