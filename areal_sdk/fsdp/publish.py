"""Publishing: the policy's weights in a safetensors file that engines map into memory.

Two files take turns, so that an engine may still read version v while v + 1 is written. Their
header is written once; a publish copies tensors in place and stamps the version into the header:

    u64 header length | {"__metadata__": {"version": "000000000012"}, "<name>": {...}, ...} | tensors
"""

import json
import mmap
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from areal_sdk.fsdp.adapter import ServedWeight
from areal_sdk.fsdp.directories import allocate
from areal_sdk.fsdp.policy import Policy
from areal_sdk.fsdp.reward_model import RewardModel
from areal_sdk.models.checkpoint import Float32
from areal_sdk.models.rounding import Beginning, sampled_places
from areal_sdk.types import UpdateContents, WeightUpdate

NUM_FILES = 2
ALIGNMENT = 64

_DTYPE_NAMES = {torch.bfloat16: "BF16", torch.float32: "F32", torch.float16: "F16"}
_VERSION_DIGITS = 12


class WeightFile:
    """One mapped file, its tensors as views."""

    def __init__(self, path: Path, shapes: Mapping[str, torch.Size], dtype: torch.dtype) -> None:
        self.path = path
        header, offsets, size = _layout(shapes, dtype)
        with allocate(path, size) as file:
            self._map = mmap.mmap(file.fileno(), size)
        self._map[: len(header)] = header
        self._version_at = header.index(b"0" * _VERSION_DIGITS)
        whole = torch.frombuffer(self._map, dtype=torch.uint8)
        self.tensors = {
            name: whole[start : start + shape.numel() * dtype.itemsize].view(dtype).view(shape)
            for (name, shape), start in zip(shapes.items(), offsets, strict=True)
        }

    def finish(self, version: int) -> str:
        """Stamp the version into the header; returns the checksum of the whole file."""
        end = self._version_at + _VERSION_DIGITS
        self._map[self._version_at : end] = f"{version:0{_VERSION_DIGITS}d}".encode()
        return f"crc32:{zlib.crc32(self._map):08x}"


class Publisher:
    """Writes the weights of each version to the place where engines find them."""

    def __init__(
        self,
        directory: Path,
        *,
        dtype: torch.dtype,
        contents: UpdateContents = "all",
        began_with: Path | None = None,
    ) -> None:
        """`began_with` is the model whose weights the run changes. With it, updates tell the effect of rounding."""
        self.directory = directory
        self.dtype = dtype
        self.contents: UpdateContents = contents
        self._beginning = (
            None if began_with is None or dtype is torch.float32 else Beginning(began_with)
        )
        self._files: list[WeightFile] = []
        self._num_published = 0

    @torch.no_grad()
    def publish(
        self, policy: Policy | RewardModel, version: int, *, is_writer: bool
    ) -> WeightUpdate:
        """Gather and write version `version`. A collective; only the writer writes."""
        weights = policy.served_weights()
        if self.contents == "changed":
            weights = [weight for weight in weights if weight.is_changed]
        path = self.directory / f"weights-{self._num_published % NUM_FILES}.safetensors"
        file = self._file(path, weights) if is_writer else None
        samples: dict[str, Float32] = {}
        for weight in weights:
            whole = weight.gathered()
            if file is not None:
                for name, tensor in whole.merged():
                    file.tensors[name].copy_(tensor)
                    if self._beginning is not None:
                        samples[name] = sample_of(tensor)
        self._num_published += 1
        if file is None:
            return WeightUpdate(version, str(path), "", self.contents)
        return WeightUpdate(
            version, str(path), file.finish(version), self.contents, self._share_seen(samples)
        )

    def _share_seen(self, samples: Mapping[str, Float32]) -> float | None:
        if self._beginning is None:
            return None
        rounding = self._beginning.rounding(samples, dtype=dtype_name(self.dtype))
        return None if rounding is None else rounding.seen

    def _file(self, path: Path, weights: Sequence[ServedWeight]) -> WeightFile:
        turn = self._num_published % NUM_FILES
        if turn == len(self._files):
            self.directory.mkdir(parents=True, exist_ok=True)
            shapes = {
                part.name: torch.Size(part.shape) for weight in weights for part in weight.parts
            }
            self._files.append(WeightFile(path, shapes, self.dtype))
        return self._files[turn]


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def sample_of(tensor: Tensor) -> Float32:
    """A small part of the weights, from any device, as `models.rounding` takes it."""
    sample: Float32 = tensor[sampled_places(tuple(tensor.shape))].detach().float().cpu().numpy()
    return sample


def _layout(shapes: Mapping[str, torch.Size], dtype: torch.dtype) -> tuple[bytes, list[int], int]:
    """Header bytes, where each tensor starts in the file, and the file's size."""
    entries: dict[str, object] = {"__metadata__": {"version": "0" * _VERSION_DIGITS}}
    starts: list[int] = []
    end = 0
    for name, shape in shapes.items():
        starts.append(end)
        size = shape.numel() * dtype.itemsize
        entries[name] = {
            "dtype": _DTYPE_NAMES[dtype],
            "shape": list(shape),
            "data_offsets": [end, end + size],
        }
        end += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    header = struct.pack("<Q", len(text)) + text
    return header, [len(header) + start for start in starts], len(header) + end
