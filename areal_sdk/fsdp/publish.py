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

from areal_sdk.fsdp.adapter import ServedWeight
from areal_sdk.fsdp.directories import allocate
from areal_sdk.fsdp.policy import Policy
from areal_sdk.fsdp.reward_model import RewardModel
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
    """Writes the weights of each version where engines find them."""

    def __init__(
        self, directory: Path, *, dtype: torch.dtype, contents: UpdateContents = "all"
    ) -> None:
        self.directory = directory
        self.dtype = dtype
        self.contents: UpdateContents = contents
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
        for weight in weights:
            whole = weight.gathered()
            if file is not None:
                for name, tensor in whole.merged():
                    file.tensors[name].copy_(tensor)
        self._num_published += 1
        checksum = file.finish(version) if file is not None else ""
        return WeightUpdate(version, str(path), checksum, self.contents)

    def _file(self, path: Path, weights: Sequence[ServedWeight]) -> WeightFile:
        turn = self._num_published % NUM_FILES
        if turn == len(self._files):
            self.directory.mkdir(parents=True, exist_ok=True)
            shapes = {
                part.name: torch.Size(part.shape) for weight in weights for part in weight.parts
            }
            self._files.append(WeightFile(path, shapes, self.dtype))
        return self._files[turn]


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
