"""Shares of the sources of a mixture that follow success (`[curriculum]`).

A source that the model always or never solves teaches little. Shares change only between blocks of tasks, and every
share that was used is kept. Episodes count at the end of the step in which their task was trained or dropped, so which
of them ended first does not matter, and none counts twice. So a resumed run draws the tasks that it would have drawn.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from areal_sdk.errors import ConfigError
from areal_sdk.telemetry.ledger import DropReason
from areal_sdk.types import Task

_KEPT = 0.5
"""Factor on the earlier counts of a source, each time that a block has brought new episodes of the source."""
NUM_FAILED = 8
"""Number of tasks of a source that must fail, with no verdict between them, for a warning about the source."""
_FAILURES = (
    DropReason.ERROR_AGENT,
    DropReason.ERROR_REWARD,
    DropReason.ERROR_ENVIRONMENT,
    DropReason.ERROR_TIMEOUT,
)
"""Faults of a source. An episode that is stale, stopped, truncated or abstained is not a fault."""
_DIGITS = 6
"""Digits to which shares are rounded, so that a checkpoint holds them exactly."""


class Curriculum:
    """The shares of one mixture. A source keeps the weight that the user gave it until it has scored episodes."""

    def __init__(
        self, weights: Mapping[str, float], *, target: float, floor: float, every: int
    ) -> None:
        """`weights` are by the label of a source. `target`, `floor` and `every` are those of `[curriculum]`."""
        self._weights = dict(weights)
        self._target = target
        self._floor = floor
        self.every = every
        self._shares: list[list[float]] = []
        self._recent = {label: [0.0, 0.0] for label in weights}
        """Successes and episodes of each source; older ones count less. A source that is never drawn would keep its numbers
        for ever, so `floor` lets every source be drawn."""
        self._fresh = {label: [0.0, 0.0] for label in weights}
        """Successes and episodes of each source since the latest block began. They are sums, so that the order of episodes
        does not matter."""
        self._open: dict[tuple[int, str], list[float]] = {}
        """Successes and episodes of each task that is not consumed: a resumed run plays it again."""
        self._consumed: list[tuple[str, list[float]]] = []
        """Successes and episodes of the tasks that were consumed since the latest step."""
        self._open_failures: dict[tuple[int, str], DropReason] = {}
        """The latest failure of each task that is not consumed."""
        self._failed = {label: Counter[DropReason]() for label in weights}
        """Tasks that failed without a verdict, by reason, since the latest verdict of their source."""
        self._told: set[str] = set()

    def observe(self, task: Task, *, epoch: int, is_success: bool) -> None:
        """Note that an episode of `task` was scored."""
        seen = self._open.setdefault((epoch, task.id), [0.0, 0.0])
        seen[0] += is_success
        seen[1] += 1.0

    def reject(self, task: Task, *, epoch: int, reason: DropReason) -> None:
        """Note that an episode of `task` was dropped without a verdict."""
        if reason in _FAILURES:
            self._open_failures[epoch, task.id] = reason

    def consume(self, key: tuple[int, str]) -> None:
        """Note that the task of this epoch and id was trained or given up."""
        failed = self._failed[self._label(key[1])]
        failure = self._open_failures.pop(key, None)
        if (seen := self._open.pop(key, None)) is not None:
            self._consumed.append((key[1], seen))
            failed.clear()
        elif failure is not None:
            failed[failure] += 1

    def notices(self) -> tuple[str, ...]:
        """A line for each source that only fails, once. Failures do not tell how hard a source is, so it keeps the
        weight that its verdicts gave it."""
        found = [
            label
            for label, failed in self._failed.items()
            if failed.total() >= NUM_FAILED and label not in self._told
        ]
        self._told.update(found)
        return tuple(
            f"{self._failed[label].total()} tasks of {label} in a row failed "
            f"({', '.join(sorted(self._failed[label]))}), and the curriculum keeps its share. areal-sdk inspect RUN "
            f"shows the errors; until they are mended, leave {label} out of the mixture"
            for label in found
        )

    def end_step(self) -> None:
        """Count the tasks that were consumed since the step before."""
        for task_id, (successes, episodes) in self._consumed:
            label = self._label(task_id)
            self._fresh[label][0] += successes
            self._fresh[label][1] += episodes
        self._consumed.clear()

    def shares(self, block: int) -> Sequence[float]:
        """The shares of the sources in a block, which add up to 1. Blocks are asked for in order."""
        while block >= len(self._shares):
            self._shares.append(self._next())
        return self._shares[block]

    def metrics(self) -> dict[str, float]:
        """The current share of each source, and its recent success where it is known."""
        found: dict[str, float] = {}
        for label, share in zip(
            self._weights, self._shares[-1] if self._shares else (), strict=False
        ):
            found[f"source/{label}/share"] = share
            if (rate := self._rate(label)) is not None:
                found[f"source/{label}/recent_success"] = rate
        return found

    def state(self) -> dict[str, Any]:
        """The present state as JSON. It is a copy, because a checkpoint writes it later."""
        return {
            "every": self.every,
            "shares": [list(one) for one in self._shares],
            "recent": {label: list(seen) for label, seen in self._recent.items()},
            "fresh": {label: list(seen) for label, seen in self._fresh.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`. Call this before the first block is asked for."""
        if state["recent"].keys() != self._weights.keys():
            raise ConfigError(
                f"the checkpoint's curriculum is of the sources {', '.join(state['recent'])}, and the mixture has "
                f"{', '.join(self._weights)}: resume with the mixture that the run began with"
            )
        self.every = state["every"]
        self._shares = [list(one) for one in state["shares"]]
        self._recent = {label: list(state["recent"][label]) for label in self._weights}
        self._fresh = {label: list(state["fresh"][label]) for label in self._weights}

    def _label(self, task_id: str) -> str:
        return max((one for one in self._weights if task_id.startswith(f"{one}/")), key=len)

    def _next(self) -> list[float]:
        for label, seen in self._recent.items():
            fresh = self._fresh[label]
            if not fresh[1]:
                continue
            self._recent[label] = [_KEPT * old + new for old, new in zip(seen, fresh, strict=True)]
            self._fresh[label] = [0.0, 0.0]
        scaled = [weight * self._scale(label) for label, weight in self._weights.items()]
        return [round(one / sum(scaled), _DIGITS) for one in scaled]

    def _scale(self, label: str) -> float:
        rate = self._rate(label)
        if rate is None:
            return 1.0
        furthest = max(self._target, 1.0 - self._target)
        return max(self._floor, 1.0 - abs(rate - self._target) / furthest)

    def _rate(self, label: str) -> float | None:
        successes, episodes = self._recent[label]
        return successes / episodes if episodes else None
