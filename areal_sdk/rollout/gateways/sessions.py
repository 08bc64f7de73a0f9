"""A caller's session in a gateway process, as the main process knows it, and the calls between the two."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from areal_sdk.process.frames import view_of
from areal_sdk.process.services import Answer, Bulk, Service, Stream
from areal_sdk.rollout.nodes.episode_wire import unpack_episode
from areal_sdk.rollout.tasks import EpisodeRequest
from areal_sdk.types import Episode, ErrorKind, Outcome, Task


@dataclass(slots=True, eq=False)
class GatewaySession:
    """A session that counts as open until its episode has come, or its process is lost."""

    id: str
    caller: str
    """The name of the caller's account."""
    split: str
    group: str
    group_size: int
    sibling: int
    oldest_version: int | None = None
    """Version of the session's first token, as its process last reported."""
    version: int | None = None
    """Version that the engine served when the session ended."""
    packed: Sequence[Bulk] | None = None
    """The packed episode, on a server that learns."""
    lost: str = ""
    """The reason why there will be no episode."""

    @property
    def is_open(self) -> bool:
        return self.packed is None and not self.lost

    def read(self, *, epoch: int) -> Episode:
        """The recorded episode; an infrastructure error if the process of the gateway was lost."""
        task = Task(self.caller)
        if self.packed is None:
            outcome = Outcome.failed(ErrorKind.INFRASTRUCTURE, self.lost)
            return Episode(
                self.id,
                task,
                (),
                outcome,
                group=self.group,
                sibling=self.sibling,
                epoch=epoch,
            )
        request = EpisodeRequest(self.id, task, self.group, self.sibling, epoch)
        return unpack_episode(request, [view_of(part) for part in self.packed])


@dataclass(frozen=True, slots=True)
class Opened:
    """A session that a caller has opened."""

    number: int
    """The session's number in the messages of its gateway process."""
    id: str
    caller: str
    split: str
    group: str
    group_size: int
    sibling: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A session that has ended."""

    number: int
    version: int
    packed: list[Bulk]


@dataclass(frozen=True, slots=True)
class GatewayReport:
    """The events of a gateway process since its last report, in order."""

    events: list[Opened | Finished]
    ages: list[tuple[int, int | None]]
    """Number of each session whose first token got another version, and this version."""


class GatewayCalls(Service, Protocol):
    """Contract of a gateway process."""

    def reports(self) -> Stream[GatewayReport]:
        """Every event from now on. A report comes at least every quarter of a second."""

    def engine_state(self, state: Mapping[str, Any]) -> Answer[None]:
        """Take the state of the engine that `open_entrance` gave, or a newer one."""

    def version(self, version: int) -> Answer[None]:
        """Note that the engine now serves `version`."""

    def over(self) -> Answer[None]:
        """Note that learning has ended: refuse rewards."""

    def end(self) -> Answer[None]:
        """End all sessions. The answer comes after the last report."""


class EngineCalls(Service, Protocol):
    """Contract of the main process: calls of a gateway process about the engine."""

    def pause(self) -> Answer[None]: ...

    def resume(self) -> Answer[None]: ...
