"""Tasks, episodes, and the verdict on an episode."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from areal_sdk.types.turns import (
    Message,
    Turn,
    excerpt,
    linked,
    pack_turns,
    restored,
    state_of,
    unpack_turns,
)


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to attempt. `id` is stable across runs: it keys groups, seeds and resumes."""

    id: str
    data: Mapping[str, Any] = field(default_factory=dict)
    """Data for the agent, the rewards and the environment: a question, an answer, a seed."""
    key: str = field(default="", init=False, repr=False, compare=False)
    """Digits that name what the task asks (`task_key`); empty until `task_key` was called."""

    @property
    def source(self) -> str:
        """The task's `source` or, without one, its `family`, from its data; empty if the data names
        neither.

        >>> Task("1", {"source": "gsm8k"}).source, Task("2").source
        ('gsm8k', '')
        """
        source = self.data.get("source", self.data.get("family", ""))
        return source if isinstance(source, str) else ""


class OutcomeKind(StrEnum):
    REWARD = "reward"
    ABSTAIN = "abstain"
    ERROR = "error"


class ErrorKind(StrEnum):
    AGENT = "agent"
    REWARD = "reward"
    ENVIRONMENT = "environment"
    INFRASTRUCTURE = "infrastructure"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict on an episode. Never confuse a missing verdict with a reward of zero.

    >>> Outcome.scored(0.5, success=False).reward
    0.5
    >>> Outcome.scored(float("nan"))
    Traceback (most recent call last):
        ...
    ValueError: a reward must be a finite number, not nan; return None to abstain
    """

    kind: OutcomeKind
    reward: float | None = None
    turn_rewards: tuple[float | None, ...] = ()
    """One reward per turn, if turns have rewards; empty otherwise. Rewards of turns are trained, and `reward` is then only
    reported."""
    by_policy: Mapping[str, float] = field(default_factory=dict)
    """Rewards by name of policy, in a run with several policies. A policy that is not named here gets `reward`."""
    success: bool | None = None
    """Whether the task was solved, if that is not simply `reward == 1`. Reported, never trained."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers to report: steps and evaluations record their means as `outcome/NAME`."""
    error: ErrorKind | None = None
    message: str = ""
    trace: str = ""
    """The traceback of the exception that user code raised."""

    @classmethod
    def scored(
        cls,
        reward: float,
        *,
        success: bool | None = None,
        turn_rewards: tuple[float | None, ...] = (),
        by_policy: Mapping[str, float] | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> Self:
        by_policy = by_policy or {}
        for value in (reward, *(r for r in turn_rewards if r is not None), *by_policy.values()):
            if not math.isfinite(value):
                raise ValueError(
                    f"a reward must be a finite number, not {value}; return None to abstain"
                )
        return cls(
            OutcomeKind.REWARD,
            reward=float(reward),
            turn_rewards=turn_rewards,
            by_policy=by_policy,
            success=success,
            metrics=metrics or {},
        )

    @property
    def reported(self) -> Mapping[str, float]:
        """The metrics, and the rewards of policies as `policy/NAME`."""
        return {**self.metrics, **{f"policy/{name}": r for name, r in self.by_policy.items()}}

    @classmethod
    def abstained(cls, why: str = "") -> Self:
        return cls(OutcomeKind.ABSTAIN, message=why)

    @classmethod
    def failed(cls, error: ErrorKind, message: str, *, trace: str = "") -> Self:
        return cls(OutcomeKind.ERROR, error=error, message=message, trace=trace)


@dataclass(frozen=True, slots=True)
class Episode:
    """One attempt at one task, with its outcome."""

    id: str
    task: Task
    turns: tuple[Turn, ...]
    outcome: Outcome
    group: str = ""
    """Id shared by the sibling attempts; empty for a caller's session without a group."""
    sibling: int = 0
    epoch: int = 0
    attempt: int = 0
    """Infrastructure retries so far: the same episode, tried again."""
    truncated: bool = False
    """Whether a limit of turns, tokens or context ended the episode. It is scored like others by default."""
    duration_s: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "turns", linked(self.turns))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored_episode, (state_of(self, turns=()), pack_turns(self.turns))

    def __repr__(self) -> str:
        outcome = self.outcome
        verdict = "abstained"
        if outcome.reward is not None:
            verdict = f"reward {outcome.reward:g}"
        elif outcome.kind is OutcomeKind.ERROR:
            verdict = f"{outcome.error} error {excerpt(outcome.message)}"
        sampled = sum(len(turn.output_tokens) for turn in self.turns)
        size = f"{len(self.turns)} turns, {sampled} tokens sampled"
        cut = ", truncated" if self.truncated else ""
        about = f"{self.id} of {self.task.id}: {verdict}, {size}{cut}"
        return f"<Episode {about}: {excerpt(self.final_text)}>"

    @property
    def reward(self) -> float | None:
        return self.outcome.reward

    @property
    def final_text(self) -> str:
        """The text of the last turn."""
        return self.turns[-1].text if self.turns else ""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation of the last turn's branch, from its first message to its answer."""
        chain: list[Turn] = []
        index: int | None = len(self.turns) - 1 if self.turns else None
        while index is not None:
            chain.append(self.turns[index])
            index = chain[-1].parent
        return tuple(m for turn in reversed(chain) for m in (*turn.new_messages, turn.message))


def _restored_episode(state: Sequence[Any], turns: Sequence[list[Any]]) -> "Episode":
    episode = restored(Episode, state)
    object.__setattr__(episode, "turns", tuple(unpack_turns(turns)))
    return episode
