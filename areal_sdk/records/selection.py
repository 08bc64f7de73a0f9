"""Selects episodes of a run: the newest, the best, the worst, a group, or those that meet a condition."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from areal_sdk.errors import ConfigError
from areal_sdk.records.where import parse_condition
from areal_sdk.telemetry import EpisodeSummary, RunDir

Order = Literal["newest", "best", "worst"]


@dataclass(frozen=True, slots=True)
class Selection:
    """A choice of episodes: of those in `group` that meet the condition `where`, the first `count` in an `order`."""

    count: int | None = None
    """Maximum number of episodes; None: all."""
    order: Order = "newest"
    """`best` and `worst` leave out episodes without a reward. Between equal rewards, the newest come first."""
    group: str | None = None
    where: str | None = None
    """Condition, in the form that `parse_condition` reads."""

    def of(self, run_dir: RunDir) -> list[EpisodeSummary]:
        """The episodes. ConfigError if the run has no such group, or if the condition cannot be read."""
        found = self._admitted(run_dir)
        if self.order == "newest":
            episodes = list(islice(found, self.count))
        else:
            sign = -1.0 if self.order == "best" else 1.0
            rated = ((sign * e.reward, n, e) for n, e in enumerate(found) if e.reward is not None)
            ranked = sorted(rated) if self.count is None else heapq.nsmallest(self.count, rated)
            episodes = [episode for _, _, episode in ranked]
        if self.group is not None and not episodes:
            self._check_group(run_dir, self.group)
        return episodes

    def _admitted(self, run_dir: RunDir) -> Iterator[EpisodeSummary]:
        condition = None if self.where is None else parse_condition(self.where)
        for episode in run_dir.list_episodes():
            in_group = self.group is None or episode.group == self.group
            if in_group and (condition is None or condition(episode)):
                yield episode

    def _check_group(self, run_dir: RunDir, group: str) -> None:
        names: dict[str, None] = {}
        for episode in run_dir.list_episodes():
            if episode.group == group:
                return
            if episode.group:
                names[episode.group] = None
        newest = ", ".join(islice(names, 3))
        raise ConfigError(
            f"no group {group!r} in {run_dir.path}; "
            + (f"the newest are {newest}" if newest else "its episodes are in no groups")
        )
