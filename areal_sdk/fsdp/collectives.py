"""Ranks: how they find one another, and agree on sums."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from areal_sdk.errors import ArealError


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among its peers. With a single rank nothing is sharded and nothing is sent."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    group: dist.ProcessGroup | None = None
    """The group that sums go over; None: that of the steps."""
    side_group: dist.ProcessGroup | None = None
    """A group on the host, for what another thread does beside the steps."""

    @property
    def is_distributed(self) -> bool:
        return self.size > 1

    @property
    def aside(self) -> "Ranks":
        """The same ranks for another thread: its collectives do not mix with those of the steps."""
        return replace(self, device=torch.device("cpu"), group=self.side_group)

    def sum(self, values: Mapping[str, float]) -> dict[str, float]:
        return self._reduce(values, dist.ReduceOp.SUM)

    def max(self, values: Mapping[str, float]) -> dict[str, float]:
        return self._reduce(values, dist.ReduceOp.MAX)

    def _reduce(
        self, values: Mapping[str, float], operation: dist.ReduceOp.RedOpType
    ) -> dict[str, float]:
        if not self.is_distributed or not values:
            return dict(values)
        tensor = torch.tensor(list(values.values()), dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op=operation, group=self.group)
        return dict(zip(values, tensor.tolist(), strict=True))

    def sum_tensor(self, values: Tensor) -> Tensor:
        """The elementwise sum over the ranks, in place."""
        if self.is_distributed:
            dist.all_reduce(values, group=self.group)
        return values

    def on_first(self, action: Callable[[], object]) -> None:
        """Have rank 0 do `action`; every rank returns when it is done, and raises if it failed."""
        error: ArealError | None = None
        if self.rank == 0:
            try:
                action()
            except ArealError as exc:
                error = exc
        failed = self.sum({"failed": float(error is not None)})["failed"]
        if error is not None:
            raise error
        if failed:
            raise ArealError("rank 0 failed; its error says why")

    def leave(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


def join_ranks(*, rank: int, size: int, device: torch.device, timeout_s: float) -> Ranks:
    """Meet the other ranks at MASTER_ADDR:MASTER_PORT."""
    if size == 1:
        return Ranks(rank, size, device)
    timeout = timedelta(seconds=timeout_s)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, rank=rank, world_size=size, timeout=timeout)
    return Ranks(rank, size, device, side_group=dist.new_group(timeout=timeout, backend="gloo"))


def full(parameter: Tensor) -> Tensor:
    """The whole of a possibly sharded tensor. A collective: every rank calls it."""
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


def global_grad_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The 2-norm of all gradients, over all ranks, as a plain scalar."""
    grads = [p.grad for p in parameters if p.grad is not None]
    return full(torch.nn.utils.get_total_norm(grads))
