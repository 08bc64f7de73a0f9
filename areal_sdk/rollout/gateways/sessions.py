"""A caller's session in a gateway process, as the main process knows it."""

from collections.abc import Sequence
from dataclasses import dataclass

from areal_sdk.rollout.nodes.episode_wire import unpack_episode
from areal_sdk.rollout.tasks import EpisodeRequest
from areal_sdk.types import Episode, ErrorKind, Outcome, Task


@dataclass(slots=True, eq=False)
class GatewaySession:
    """A session that counts as open until its episode has come, or its process is lost."""

    id: str
    caller: str
    """The name of its account."""
    split: str
    group: str
    group_size: int
    sibling: int
    oldest_version: int | None = None
    """Version of the session's first token, as its process last reported."""
    version: int | None = None
    """Version that was served when the session was finished."""
    packed: Sequence[memoryview] | None = None
    """The packed episode, on a server that learns."""
    lost: str = ""
    """The reason why there will be no episode."""

    @property
    def is_open(self) -> bool:
        return self.packed is None and not self.lost

    def read(self, *, epoch: int) -> Episode:
        """The episode. If its process was lost, it is an infrastructure error."""
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
        return unpack_episode(request, self.packed)
