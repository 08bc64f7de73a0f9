"""The source of a run's episodes, and the booking of each episode.

    an episode begins -> ledger: running -> it ends -> triage -> buffer, or dropped for a reason

`Dispatcher` plays tasks; `CallerEpisodes` follows the sessions of callers. Both only say when an
episode begins and wait for its end: ledger, buffer, triage and observers are used here alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Self

from areal_sdk.rollout.buffer import TrajectoryBuffer
from areal_sdk.rollout.groups import (
    EpisodeObserver,
    PendingGroup,
    Rejection,
    ScoredEpisode,
    TriagedEpisode,
    Truncated,
    triage,
)
from areal_sdk.rollout.tasks import TaskBook
from areal_sdk.types import Episode

STOP_TIMEOUT_S = 10.0
"""Seconds that cancelled episodes may take to end."""


class EpisodeSource(ABC):
    """Begins the episodes of a run, from `async with` to its end, and books each one.

    A subclass calls `begin` when an episode starts, then `end` with the finished episode or `cut_off` if there will be
    none. Leaving cancels the running episodes and books them as `cancelled`; finished groups stay in the buffer.
    """

    def __init__(
        self,
        buffer: TrajectoryBuffer,
        *,
        tasks: TaskBook,
        truncated: Truncated = "score",
        on_episode: EpisodeObserver = lambda episode, triaged: None,
    ) -> None:
        assert buffer.tasks is tasks, "the buffer tells another source which tasks are consumed"
        self.buffer = buffer
        self._truncated: Truncated = truncated
        self._on_episode = on_episode

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(self, *_: object) -> None: ...

    def set_version(self, version: int) -> None:
        """Note that the engine has confirmed `version`, so that more episodes may begin."""
        self.buffer.set_version(version)

    def state(self) -> Mapping[str, object]:
        """The consumed tasks as JSON, for `restore` of a new source over the same tasks."""
        return self.buffer.tasks.state()

    def restore(self, state: Mapping[str, object]) -> None:
        """Continue after the tasks that are consumed according to `state`. Call this before `async with`."""
        self.buffer.tasks.restore(state)

    # --- for subclasses ------------------------------------------------------------------------

    def begin(self, group: PendingGroup, sibling: int, age: Callable[[], int | None]) -> None:
        """Note that an episode starts. `age` returns the version of its first token, and None before the first token."""
        self.buffer.ledger.start(1)
        group.ages[sibling] = age

    def end(
        self, group: PendingGroup, sibling: int, episode: Episode | TriagedEpisode
    ) -> ScoredEpisode | Rejection:
        """Give an episode that has ended to the buffer, or drop it for the reason that is returned."""
        if isinstance(episode, TriagedEpisode):
            triaged = episode.triaged
        else:
            triaged = triage(episode, truncated=self._truncated)
        if isinstance(triaged, ScoredEpisode):
            del group.ages[sibling]
            self.buffer.accept(group, triaged)
        else:
            self.cut_off(group, sibling, triaged, ran_s=episode.duration_s)
        self.tell(episode, triaged)
        return triaged

    def cut_off(
        self, group: PendingGroup, sibling: int, rejection: Rejection, *, ran_s: float
    ) -> None:
        """Note that an episode that began will not be trained."""
        del group.ages[sibling]
        self.buffer.reject(group, rejection, ran_s=ran_s)

    def tell(self, episode: Episode | TriagedEpisode, triaged: ScoredEpisode | Rejection) -> None:
        """Tell the observers the fate of an episode."""
        self._on_episode(episode, triaged)
