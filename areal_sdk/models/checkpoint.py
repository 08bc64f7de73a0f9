"""Model directories as transformers and SGLang load them, written and looked into without torch."""

import json
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping
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


def stored_dtypes(directory: Path) -> dict[str, str]:
    """Name and dtype of every tensor in the safetensors files of `directory`, from their headers."""
    found: dict[str, str] = {}
    for path in sorted(directory.glob("*.safetensors")):
        try:
            with path.open("rb") as file:
                header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        except (OSError, ValueError) as exc:
            raise ConfigError(f"{path} cannot be read: {exc}") from exc
        for name, entry in header.items():
            if name != "__metadata__":
                found[name] = _DTYPES.get(entry["dtype"], entry["dtype"])
    return found


def check_safetensors(directory: Path) -> None:
    """ConfigError unless `directory` holds safetensors."""
    if not stored_dtypes(directory):
        raise ConfigError(
            f"{directory} holds no .safetensors file: convert its weights with "
            "AutoModelForCausalLM.from_pretrained(...).save_pretrained(...)"
        )


_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.gguf", "*.pt", ".*")
"""Weights in any form, and hidden files."""


def copy_all_but_weights(model_dir: Path, directory: Path) -> None:
    """Copy what describes the model: config, tokenizer, chat template. `directory` exists already."""
    mode = stat.S_IMODE(directory.stat().st_mode)
    shutil.copytree(
        model_dir,
        directory,
        ignore=shutil.ignore_patterns(*_WEIGHTS),
        copy_function=shutil.copyfile,  # not the modes: a model may be kept read-only
        dirs_exist_ok=True,
    )
    directory.chmod(mode)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_safetensors(
    path: Path, weights: Iterable[Weight], *, dtype: Literal["F32", "BF16"]
) -> None:
    """Write `weights` as `dtype`, one tensor in memory at a time."""
    num_bytes = {"F32": 4, "BF16": 2}[dtype]
    weights = sorted(weights, key=lambda weight: weight.name)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
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
            encoded = to_bfloat16(array) if dtype == "BF16" else array
            file.write(np.ascontiguousarray(encoded).data)


def to_bfloat16(array: Float32) -> npt.NDArray[np.uint16]:
    """The bits of bfloat16, rounded to nearest even as torch does; finite input only."""
    bits = np.ascontiguousarray(array).view(np.uint32)
    rounding = 0x7FFF + ((bits >> 16) & 1)
    return ((bits + rounding) >> 16).astype(np.uint16)


def write_tokenizer_config(directory: Path, **special_tokens: str) -> None:
    """`tokenizer_config.json` for the `tokenizer.json` beside it."""
    content = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **special_tokens,
    }
    write_json(directory / "tokenizer_config.json", content)
