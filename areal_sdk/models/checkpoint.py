"""Model directories as transformers and SGLang load them, written and looked into without torch."""

import hashlib
import json
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from areal_sdk.errors import ConfigError

Float32: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor of a checkpoint, loaded only when it is its turn to be written."""

    name: str
    shape: tuple[int, ...]
    load: Callable[[], Float32]


_DTYPES = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}

Dtype = Literal["F32", "BF16", "F16"]
DTYPES: Mapping[str, Dtype] = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
"""The types that weights are written in, as safetensors calls them."""


def stored_dtypes(directory: Path) -> dict[str, str]:
    """Name and dtype of every tensor in the safetensors files of `directory`."""
    return {
        name: _DTYPES.get(entry["dtype"], entry["dtype"])
        for name, entry in _stored(directory).items()
    }


def stored_shapes(directory: Path) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor in the safetensors files of `directory`."""
    return {name: tuple(entry["shape"]) for name, entry in _stored(directory).items()}


def _stored(directory: Path) -> dict[str, Any]:
    """The entry of each tensor in the headers of the files."""
    return {
        name: entry
        for path in sorted(directory.glob("*.safetensors"))
        for name, entry in _header(path)[0].items()
    }


def stored_notes(directory: Path) -> dict[str, str]:
    """The metadata in the headers of the safetensors files of `directory`."""
    notes: dict[str, str] = {}
    for path in sorted(directory.glob("*.safetensors")):
        notes |= _whole_header(path)[0].get(_METADATA, {})
    return notes


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """The entry of each tensor in the header of a safetensors file, and the place where the tensors begin."""
    header, first = _whole_header(path)
    return {name: entry for name, entry in header.items() if name != _METADATA}, first


_METADATA = "__metadata__"


def _whole_header(path: Path) -> tuple[dict[str, Any], int]:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path} cannot be read: {exc}") from exc
    return header, 8 + length


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """The place of a tensor in a safetensors file; nothing of the tensor is in memory."""

    path: Path
    dtype: str
    """Dtype in the words of safetensors."""
    shape: tuple[int, ...]
    offset: int
    num_bytes: int

    @property
    def row_bytes(self) -> int:
        return self.num_bytes // max(1, self._num_rows)

    @property
    def _num_rows(self) -> int:
        return self.shape[0] if self.shape else 1

    def rows(self, start: int = 0, stop: int | None = None) -> Float32:
        """The rows `[start, stop)` as float32, read from the disk; default: all."""
        stop = self._num_rows if stop is None else min(stop, self._num_rows)
        kind = self._stored_as()
        with self.path.open("rb") as file:
            file.seek(self.offset + start * self.row_bytes)
            stored = np.frombuffer(file.read((stop - start) * self.row_bytes), kind)
        return self._decoded(stored).reshape((stop - start, *self.shape[1:]) if self.shape else ())

    def sample(self, place: tuple[slice, ...]) -> Float32:
        """`tensor[place]` as float32; of the file only these entries are read."""
        if 0 in self.shape:
            return np.zeros(self.shape, np.float32)[place]
        whole = np.memmap(self.path, self._stored_as(), "r", self.offset, self.shape)
        return self._decoded(np.ascontiguousarray(whole[place]))

    def _stored_as(self) -> str:
        if self.dtype not in _DTYPES:
            raise ConfigError(
                f"{self.path}: tensors of type {self.dtype} cannot be read; save the model as bfloat16"
            )
        return "uint16" if self.dtype == "BF16" else _DTYPES[self.dtype]

    def _decoded(self, stored: npt.NDArray[Any]) -> Float32:
        if self.dtype == "BF16":  # the upper half of a float32
            return (stored.astype(np.uint32) << 16).view(np.float32)
        return stored.astype(np.float32)


def stored_tensors(directory: Path) -> dict[str, StoredTensor]:
    """Every tensor in the safetensors files of `directory`, by name."""
    tensors = {}
    for path in sorted(directory.glob("*.safetensors")):
        entries, first = _header(path)
        for name, entry in entries.items():
            begin, end = entry["data_offsets"]
            tensors[name] = StoredTensor(
                path, entry["dtype"], tuple(entry["shape"]), first + begin, end - begin
            )
    return tensors


def stored_weights(directory: Path) -> Iterator[Weight]:
    """The tensors in the safetensors files of `directory`, each read from the disk when it is loaded."""
    for name, tensor in stored_tensors(directory).items():
        yield Weight(name, tensor.shape, tensor.rows)


FINGERPRINT_BYTES = 2**13
"""Bytes that are read at the beginning and at the end of each tensor."""


def fingerprint(directory: Path) -> str:
    """A digest that tells weights apart, by the names and shapes of all tensors and the bytes at both ends of each.

    Every tensor counts, because merging an adapter changes some tensors and leaves the others alone.
    """
    digest = hashlib.sha256()
    for path in sorted(directory.glob("*.safetensors")):
        entries, first = _header(path)
        digest.update(json.dumps([path.name, path.stat().st_size, entries]).encode())
        with path.open("rb") as file:
            for begin, end in sorted(tuple(entry["data_offsets"]) for entry in entries.values()):
                for start in (begin, max(begin, end - FINGERPRINT_BYTES)):
                    file.seek(first + start)
                    digest.update(file.read(min(FINGERPRINT_BYTES, end - start)))
    return digest.hexdigest()


def check_safetensors(directory: Path) -> None:
    """Raise ConfigError unless `directory` holds safetensors."""
    if not stored_dtypes(directory):
        raise ConfigError(
            f"{directory} holds no .safetensors file: convert its weights with "
            "AutoModelForCausalLM.from_pretrained(...).save_pretrained(...)"
        )


ADAPTER = "adapter"
"""A directory in an exported model: the adapter alone that was merged into it, as peft saves it."""

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.gguf", "*.pt", ADAPTER, ".*")
"""Weights in any form, and hidden files."""


def copy_all_but_weights(model_dir: Path, directory: Path) -> None:
    """Copy what describes the model: config, tokenizer, chat template. `directory` exists already."""
    mode = stat.S_IMODE(directory.stat().st_mode)
    try:
        shutil.copytree(
            model_dir,
            directory,
            ignore=shutil.ignore_patterns(*_WEIGHTS),
            copy_function=_copy_file,
            dirs_exist_ok=True,
        )
    except _NotCopiedError as exc:
        raise exc.error from None
    directory.chmod(mode)


class _NotCopiedError(Exception):
    """Ends `copytree`, which would go on after an OSError and then raise a list of texts."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


def _copy_file(source: str, target: str) -> None:
    """Copy the content and not the mode: a model may be kept read-only."""
    try:
        shutil.copyfile(source, target)
    except OSError as exc:
        raise _NotCopiedError(exc) from exc


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_safetensors(path: Path, weights: Iterable[Weight], *, dtype: Dtype) -> int:
    """Write `weights` as `dtype`, one tensor in memory at a time.

    Returns how many values were too small for float16, and are 0 in the file. ConfigError for a tensor with a value
    that is too large for float16.
    """
    num_vanished = 0
    num_bytes = {"F32": 4, "BF16": 2, "F16": 2}[dtype]
    weights = sorted(weights, key=lambda weight: weight.name)
    header: dict[str, Any] = {_METADATA: {"format": "pt"}}
    offset = 0
    for weight in weights:
        end = offset + int(np.prod(weight.shape)) * num_bytes
        header[weight.name] = {
            "dtype": dtype,
            "shape": weight.shape,
            "data_offsets": [offset, end],
        }
        offset = end
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)  # tensors start aligned, so that they can be mapped
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for weight in weights:
            array = weight.load()
            assert array.shape == weight.shape, weight.name
            encoded = np.ascontiguousarray(_ENCODERS[dtype](array))
            if dtype == "F16":
                _check_in_range(weight.name, array, encoded)
                num_vanished += int(np.count_nonzero(array) - np.count_nonzero(encoded))
            file.write(encoded.data)
    return num_vanished


def _check_in_range(name: str, array: Float32, encoded: npt.NDArray[np.float16]) -> None:
    if np.any(too_large := np.isinf(encoded) & np.isfinite(array)):
        largest = float(np.abs(array[too_large]).max())
        raise ConfigError(
            f"{name} has a weight of {largest:g}, and float16 ends at 65504: write bfloat16 or float32"
        )


def rounded(array: Float32, dtype: Dtype) -> Float32:
    """The values that `array` has once it is written as `dtype` and read again."""
    if dtype == "BF16":
        return (to_bfloat16(array).astype(np.uint32) << 16).view(np.float32)
    return to_float16(array).astype(np.float32) if dtype == "F16" else array


def to_float16(array: Float32) -> npt.NDArray[np.float16]:
    """Rounded to nearest even as torch does; a value that is too large becomes infinite."""
    with np.errstate(over="ignore", under="ignore"):
        return array.astype(np.float16)


def to_bfloat16(array: Float32) -> npt.NDArray[np.uint16]:
    """The bits of bfloat16, rounded to nearest even as torch does; finite input only."""
    bits = np.ascontiguousarray(array).view(np.uint32)
    rounding = 0x7FFF + ((bits >> 16) & 1)
    return ((bits + rounding) >> 16).astype(np.uint16)


_ENCODERS: Mapping[Dtype, Callable[[Float32], npt.NDArray[Any]]] = {
    "F32": lambda array: array,
    "BF16": to_bfloat16,
    "F16": to_float16,
}


def write_tokenizer_config(directory: Path, **special_tokens: str) -> None:
    """`tokenizer_config.json` for the `tokenizer.json` beside it."""
    content = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **special_tokens,
    }
    write_json(directory / "tokenizer_config.json", content)
