"""The contract of launcher and driver: requests for room in the cluster. It imports no ray, and both ends import it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from areal_sdk.launcher import Answer, Service


@dataclass(frozen=True, slots=True)
class Wanted:
    """A process that needs room."""

    name: str
    cpus: float
    gpus: int | None
    """None: one GPU if the cluster has any."""


@dataclass(frozen=True, slots=True)
class Room:
    """The room of one process, with a host in it."""

    address: str
    port: int
    """A port that the host keeps free for the process."""
    gpus: int


@dataclass(frozen=True, slots=True)
class Start:
    """The command of a process, for the host that starts it."""

    arguments: tuple[str, ...]
    env: Mapping[str, str]
    log: str


class Placing(Service, Protocol):
    """The jobs of one run in the cluster. A job has a name, and rooms for its processes."""

    def shortage(self, processes: tuple[Wanted, ...]) -> Answer[str]:
        """The reason why the cluster could never hold all processes, whoever uses it now; empty if
        it could."""

    def reserve(self, job: str, processes: tuple[Wanted, ...], timeout_s: float) -> Answer[bool]:
        """Reserve room for all processes, close together; False if Ray has the room, and has not given it yet."""

    def reserved(self, job: str, timeout_s: float) -> Answer[None]:
        """Wait for room that Ray has and has not given yet."""

    def host(self, job: str, timeout_s: float) -> Answer[tuple[Room, ...]]:
        """Put a host on each reserved place."""

    def start(self, job: str, processes: Mapping[str, Start]) -> Answer[Mapping[str, str]]:
        """Start each process on its host. Returns their logs."""

    def first_exit(self, job: str) -> Answer[str]:
        """Wait until a process of the job has ended; returns how."""

    def signal(self, job: str, name: str, number: int) -> Answer[None]:
        """Signal a process of the job."""

    def free(self, job: str) -> Answer[None]:
        """End what is left of the job, and give its room back."""
