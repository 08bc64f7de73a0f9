"""Ranks: the way they find one another, and their sums."""

import fcntl
import os
import socket
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from areal_sdk.errors import ArealError
from areal_sdk.fsdp.kernels.sequence_ranks import SequenceRanks

_SIOCGIFADDR = 0x8915  # "the address of an interface", see netdevice(7)


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among its peers. With a single rank nothing is sharded and nothing is sent."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    group: dist.ProcessGroup | None = None
    """The group that sums go over; None: the default group, which the steps use."""
    side_group: dist.ProcessGroup | None = None
    """A group on the host, for another thread that works beside the steps."""
    sequence: SequenceRanks = field(default_factory=SequenceRanks)
    """The neighbours: the ranks that compute each row together with this one."""
    rows_group: dist.ProcessGroup | None = None
    """The group with one rank of each neighbourhood: the ranks at the same place as this one in theirs."""

    @property
    def is_distributed(self) -> bool:
        return self.size > 1

    @property
    def rows(self) -> "Ranks":
        """The ranks that have rows of their own, for plans and sums over rows: neighbours with the same
        rows count as one."""
        together = self.sequence.size
        if together == 1:
            return self
        return replace(
            self,
            rank=self.rank // together,
            size=self.size // together,
            group=self.rows_group,
            sequence=SequenceRanks(),
        )

    @property
    def aside(self) -> "Ranks":
        """The same ranks for another thread, whose collectives do not mix with those of the steps."""
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
        given = torch.tensor(list(values.values()), dtype=torch.float64)
        tensor = given.to(self.device, non_blocking=True)  # else the host waits here too
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


def join_ranks(
    *, rank: int, size: int, device: torch.device, timeout_s: float, sequence_ranks: int = 1
) -> Ranks:
    """Meet the other ranks at MASTER_ADDR:MASTER_PORT; `sequence_ranks` neighbours share their rows."""
    if size == 1:
        return Ranks(rank, size, device)
    timeout = timedelta(seconds=timeout_s)
    backend = "nccl" if device.type == "cuda" else "gloo"
    if interface := interface_towards(os.environ["MASTER_ADDR"]):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    dist.init_process_group(backend, rank=rank, world_size=size, timeout=timeout)
    side_group = dist.new_group(timeout=timeout, backend="gloo")
    if sequence_ranks == 1:
        return Ranks(rank, size, device, side_group=side_group)
    sequence, rows_group = _neighbours(rank, size, sequence_ranks, timeout)
    return Ranks(
        rank, size, device, side_group=side_group, sequence=sequence, rows_group=rows_group
    )


def interface_towards(host: str) -> str:
    """The network interface that reaches `host`; empty if it is not known.

    Without it gloo listens at the address of this machine's name, which on many machines is 127.0.0.1 and unreachable
    for others.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((host, 9))  # sends nothing: it only chooses a route
        except OSError:
            return ""  # IPv6, or a name that is not known here: gloo chooses
        address = sock.getsockname()[0]
        for _, name in socket.if_nameindex():
            try:
                asked = struct.pack("256s", name.encode())
                found = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, asked)[20:24]
            except OSError:
                continue  # it has no address
            if socket.inet_ntoa(found) == address:
                return name
    return ""


def _neighbours(
    rank: int, size: int, together: int, timeout: timedelta
) -> tuple[SequenceRanks, dist.ProcessGroup]:
    """This rank's neighbours and its `rows_group`. Every rank makes all groups, in one order, and keeps its own."""

    def own(members: Iterable[range]) -> dist.ProcessGroup:
        made = [(ranks, dist.new_group(list(ranks), timeout=timeout)) for ranks in members]
        kept: dist.ProcessGroup = next(group for ranks, group in made if rank in ranks)
        return kept

    row = own(range(first, first + together) for first in range(0, size, together))
    rows = own(range(place, size, together) for place in range(together))
    return SequenceRanks(rank % together, together, row), rows


def full(parameter: Tensor) -> Tensor:
    """The whole tensor, from its shards if it has some. A collective: every rank calls it."""
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


def global_grad_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The 2-norm of all gradients, over all ranks, as a plain scalar."""
    grads = [p.grad for p in parameters if p.grad is not None]
    return full(torch.nn.utils.get_total_norm(grads))
