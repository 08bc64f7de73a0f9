"""The child that holds new weights and hands them to servers; the only torch user of this package.

It maps the published safetensors, lays the parameters out in flat buckets of shared memory (before
anybody is paused), and serves them: as handles that a server on this host opens (`tensor`), or by
broadcast in a group of its own with each server (`distributed`). It also computes what a server
*should* hold and say: checksums of its parameters, and logprobs of the canary prompt.
"""

import base64
import io
import mmap
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import sha256
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from safetensors import safe_open
from torch.distributed import distributed_c10d

from areal_sdk.backends.remote.weights.sender import Checksums, Parameter, SenderCalls, WeightGroup
from areal_sdk.errors import ConfigError
from areal_sdk.models.experts import StoredPart, stored_parts
from areal_sdk.process import JSON, Channel
from areal_sdk.process.services import Answering


@dataclass(slots=True)
class Bucket:
    """Some parameters, one after another, as bytes in shared memory."""

    parameters: list[Parameter]
    flat: torch.Tensor

    @property
    def metadata(self) -> list[SimpleNamespace]:
        """The attributes by which servers cut the bucket up again."""
        entries = []
        offset = 0
        for name, dtype, shape in self.parameters:
            kind: torch.dtype = getattr(torch, dtype)
            size = torch.Size(shape).numel() * kind.itemsize
            entries.append(
                SimpleNamespace(
                    name=name,
                    shape=tuple(shape),
                    dtype=kind,
                    start_idx=offset,
                    end_idx=offset + size,
                    numel=size,
                )
            )
            offset += size
        return entries


@dataclass(slots=True)
class PublishedWeights:
    """One published version, mapped from its files and cast to what servers hold."""

    dtype: torch.dtype | None
    sent: list[str] = field(default_factory=list)
    """The tensors that are sent to servers. The others are those of the checkpoint with which the servers were
    started."""
    _handles: dict[str, Any] = field(default_factory=dict)
    """The open file that holds each tensor."""

    @classmethod
    def open(cls, path: Path, *, dtype: str, base: Path | None = None) -> "PublishedWeights":
        """The weights at `path`. With `base`, `path` holds only the changed tensors, and the checkpoint `base` the others."""
        weights = cls(None if dtype == "auto" else getattr(torch, dtype))
        if base is not None:
            weights._handles |= _handles_of(base)
        published = _handles_of(path)
        weights._handles |= published
        weights.sent = sorted(published)
        return weights

    @property
    def names(self) -> list[str]:
        return sorted(self._handles)

    def __contains__(self, name: str) -> bool:
        return name in self._handles

    def get(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._handles[name].get_tensor(name)
        if self.dtype is not None and tensor.is_floating_point():
            tensor = tensor.to(self.dtype)
        return tensor.contiguous()


def _handles_of(path: Path) -> dict[str, Any]:
    """The open file that holds each tensor."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise ConfigError(f"{path} holds no safetensors file")
    handles: list[Any] = [safe_open(file, framework="pt") for file in files]
    return {name: handle for handle in handles for name in handle.keys()}  # noqa: SIM118


class Sender(SenderCalls):
    """Holds the weights of one version. Calls come from several threads at once."""

    def __init__(
        self,
        model: Path,
        *,
        dtype: str,
        bucket_bytes: int,
        device: str,
        fused: Mapping[str, Sequence[str]],
        vocabulary_multiple: int,
    ) -> None:
        self._model = model
        self._dtype = dtype
        self._bucket_bytes = bucket_bytes
        self._device = device
        self._fused = fused
        self._vocabulary_multiple = vocabulary_multiple
        self._weights: PublishedWeights | None = None
        self._buckets: list[Bucket] = []
        self._groups: dict[str, dist.ProcessGroup] = {}
        self._scorer: torch.nn.Module | None = None
        self._scored: PublishedWeights | None = None
        self._lock = threading.Lock()

    def open(self, path: str, checksum: str, contents: str) -> None:
        published = Path(path)
        _verify(published, checksum)
        base = self._model if contents == "changed" else None
        self._weights = PublishedWeights.open(published, dtype=self._dtype, base=base)

    def fill(self) -> list[list[Parameter]]:
        weights = self._current()
        if sorted(name for b in self._buckets for name, _, _ in b.parameters) != weights.sent:
            self._buckets = self._plan(weights)
        for bucket in self._buckets:
            offset = 0
            for name, _, _ in bucket.parameters:
                raw = weights.get(name).flatten().view(torch.uint8)
                bucket.flat[offset : offset + raw.numel()].copy_(raw)
                offset += raw.numel()
        return [bucket.parameters for bucket in self._buckets]

    def handles(self, bucket: int, receivers: int) -> list[str]:
        shared = self._buckets[bucket]
        handles: list[str] = []
        for _ in range(receivers):
            buffer = io.BytesIO()
            ForkingPickler(buffer).dump(
                {"flattened_tensor": shared.flat, "metadata": shared.metadata}
            )
            handles.append(base64.b64encode(buffer.getvalue()).decode())
        return handles

    def join(self, group: WeightGroup) -> None:
        timeout = timedelta(seconds=group.timeout_s)
        store = dist.TCPStore(  # type: ignore[attr-defined]  # exported, not declared
            group.host, group.port, group.world_size, is_master=True, timeout=timeout
        )
        # The public constructor makes the default group only, and each server needs its own.
        made, _ = distributed_c10d._new_process_group_helper(
            group.world_size,
            0,
            [],
            dist.Backend(group.backend),
            distributed_c10d.PrefixStore(group.name, store),
            group_name=group.name,  # type: ignore[arg-type]  # a NewType of str that is not exported
            timeout=timeout,
        )
        self._groups[group.name] = made

    def send(self, group: str, bucket: int) -> None:
        flat = self._buckets[bucket].flat.to(self._device)
        self._groups[group].broadcast(flat, 0).wait()

    def leave(self, group: str) -> None:
        left = self._groups.pop(group, None)
        if left is not None:
            left.shutdown()

    def checksums(self, names: list[str]) -> Checksums:
        weights = self._current()
        whole = sha256()
        known: dict[str, str] = {}
        for name in names:
            parts = _parts_of(name, weights, self._fused)
            if parts:
                digest = sha256()
                for part in parts:
                    raw = self._as_served(name, weights.get(part)).flatten().view(torch.uint8)
                    digest.update(raw.numpy().data)
                known[name] = digest.digest()[:8].hex()
                whole.update(digest.digest())
        return Checksums(known, whole.hexdigest())

    def canary(self, tokens: Sequence[int], candidates: Sequence[int]) -> list[float]:
        model = self._scoring_model()
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([tokens])).logits[0, -1].float()
        logprobs = torch.log_softmax(logits, dim=-1)
        return [float(logprobs[candidate]) for candidate in candidates]

    def _as_served(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor with the rows of zeros that servers pad vocabularies with."""
        if name.endswith(("embed_tokens.weight", "lm_head.weight")):
            missing = -tensor.shape[0] % self._vocabulary_multiple
            return torch.nn.functional.pad(tensor, (0, 0, 0, missing))
        return tensor

    def _scoring_model(self) -> torch.nn.Module:
        weights = self._current()
        with self._lock:
            if self._scorer is None:
                self._scorer = _empty_model(self._model)
            if self._scored is not weights:
                self._fill(self._scorer, weights)
                self._scored = weights
            return self._scorer

    def _fill(self, model: Any, weights: PublishedWeights) -> None:
        """Fill the model in float32, whatever the server computes in, because the reference should be the more exact
        one."""
        shapes = {name: held.shape for name, held in model.state_dict().items()}
        parts = {
            name: stored_parts(model.config.model_type, name, shape)
            for name, shape in shapes.items()
        }
        known = [part.name for found in parts.values() for part in found]
        missing = [name for name in known if name not in weights and "lm_head" not in name]
        unexpected = sorted({*weights.names} - {*known})
        if missing or unexpected:
            raise ConfigError(
                f"the published weights do not fit {self._model}: missing {missing[:3]}, "
                f"unexpected {unexpected[:3]}"
            )
        state = {
            name: _assembled(found, shapes[name], weights)
            for name, found in parts.items()
            if found[0].name in weights
        }
        model.load_state_dict(state, strict=False, assign=True)
        model.tie_weights()

    def _current(self) -> PublishedWeights:
        assert self._weights is not None, "open comes first"
        return self._weights

    def _plan(self, weights: PublishedWeights) -> list[Bucket]:
        """Buckets of about `bucket_bytes`, wide types first so that every offset is aligned."""
        tensors = [(name, weights.get(name)) for name in weights.sent]
        tensors.sort(key=lambda item: (-item[1].itemsize, item[0]))
        plan: list[list[tuple[str, torch.Tensor]]] = [[]]
        size = 0
        for name, tensor in tensors:
            if plan[-1] and size + tensor.nbytes > self._bucket_bytes:
                plan.append([])
                size = 0
            plan[-1].append((name, tensor))
            size += tensor.nbytes
        return [
            Bucket(
                [(n, str(t.dtype).removeprefix("torch."), list(t.shape)) for n, t in group],
                _shared_bytes(sum(t.nbytes for _, t in group)),
            )
            for group in plan
        ]


def _verify(path: Path, checksum: str) -> None:
    """Check that the file is exactly the one that the trainer published."""
    kind, _, expected = checksum.partition(":")
    if kind != "crc32":
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        actual = f"{zlib.crc32(content):08x}"
    if actual != expected:
        raise ConfigError(
            f"{path} has crc32 {actual}, the trainer published {expected}: "
            "it was written or changed after it was published"
        )


def _parts_of(
    name: str, weights: PublishedWeights, fused_names: Mapping[str, Sequence[str]]
) -> list[str]:
    """The published parameters that make up a server's parameter; empty when it is not known."""
    if name in weights:
        return [name]
    if name == "lm_head.weight" and "model.embed_tokens.weight" in weights:
        return ["model.embed_tokens.weight"]
    for fused, parts in fused_names.items():
        if f".{fused}." in name:
            found = [name.replace(fused, part) for part in parts]
            return found if all(part in weights for part in found) else []
    return []


def _assembled(
    parts: Sequence[StoredPart], shape: torch.Size, weights: PublishedWeights
) -> torch.Tensor:
    """The parameter that is made of `parts`."""
    if len(parts) == 1:
        return weights.get(parts[0].name).float()
    whole = torch.empty(shape)
    for part in parts:
        whole[part.place] = weights.get(part.name).float()
    return whole


def _shared_bytes(size: int) -> torch.Tensor:
    flat = torch.empty(size, dtype=torch.uint8)
    shared: torch.Tensor = flat.share_memory_()  # type: ignore[no-untyped-call]
    return shared


def _empty_model(directory: Path) -> torch.nn.Module:
    """The model's modules without values, except buffers such as rotary frequencies."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(directory)
    config.dtype = torch.float32
    model: torch.nn.Module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model.eval()


def main(channel: Channel, args: Mapping[str, JSON]) -> None:
    """Serve until the main process leaves. Slow methods run beside each other in threads."""
    torch.set_num_threads(1)
    # Handles must name files: descriptors cannot be opened by a process that is not our child.
    torch.multiprocessing.set_sharing_strategy("file_system")  # type: ignore[no-untyped-call]
    options: Mapping[str, Any] = args
    sender = Sender(
        Path(options["model"]),
        dtype=options["dtype"],
        bucket_bytes=options["bucket_bytes"],
        device=options["device"],
        fused=options["fused"],
        vocabulary_multiple=options["vocabulary_multiple"],
    )
    answering = Answering(sender)
    channel.ready()
    while True:
        if (request := channel.receive()) is not None:
            threading.Thread(target=answering.answer, args=(request,), daemon=True).start()
