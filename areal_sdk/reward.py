"""The reward contract: a plain function, sync or async, of an episode."""

from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from areal_sdk.types import Episode, Outcome

Verdict = float | int | bool | Outcome | Sequence[float | None] | None
"""A number (True is 1.0), one number per turn, a full `Outcome`, or None to abstain."""

_WAYS = "a reward returns a number, a list with one number per turn, an Outcome or None"

RewardFn = Callable[..., Verdict | Awaitable[Verdict]]
"""`fn(episode, **options)`. Keyword parameters are options, read from `[reward.NAME]`."""


def as_outcome(verdict: Verdict, episode: Episode) -> Outcome:
    """A reward's return value as an `Outcome`; ValueError if it is not a verdict."""
    if verdict is None:
        return Outcome.abstained()
    if isinstance(verdict, Outcome):
        return verdict
    if isinstance(verdict, (bool, int, float)):
        return Outcome.scored(float(verdict))
    if isinstance(verdict, (list, tuple)):
        per_turn = as_turn_rewards(verdict)
        if len(per_turn) != len(episode.turns):
            raise ValueError(
                f"{len(per_turn)} turn rewards for an episode of {len(episode.turns)} turns: "
                f"{_WAYS}"
            )
        if all(reward is None for reward in per_turn):
            return Outcome.abstained("no turn has a reward")
        return Outcome.scored(sum(r for r in per_turn if r is not None), turn_rewards=per_turn)
    raise ValueError(f"{_WAYS}, not {type(verdict).__name__}")


def as_turn_rewards(verdict: Sequence[object]) -> tuple[float | None, ...]:
    """The rewards of the turns as floats; ValueError if they are no numbers."""
    try:
        return tuple(None if r is None else float(cast(float, r)) for r in verdict)
    except (TypeError, ValueError):
        raise ValueError(f"{_WAYS}, not {verdict!r:.80}") from None


__all__ = ["RewardFn", "Verdict", "as_outcome", "as_turn_rewards"]
