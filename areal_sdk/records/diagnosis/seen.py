"""The remembered batches of a run, and the level of weights, measured by the batches around them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Self

from areal_sdk.records.diagnosis.measures import moved

OF_STEPS = (
    "entropy",
    "kl_step",
    "kl_behaviour",
    "kl_behaviour_after",
    "staleness_mean",
    "num_updates",
    "num_trained",
)
"""The metrics of a step that are remembered."""


def success_over_all(batch: Mapping[str, float]) -> float:
    """The success over all episodes that ended: an episode without a reward is no success.

    >>> success_over_all({"success": 1.0, "without_reward": 0.75})
    0.25
    """
    return (batch.get("success") or 0.0) * (1.0 - (batch.get("without_reward") or 0.0))


@dataclass(frozen=True, slots=True)
class Seen:
    """A batch as it is remembered, with the step before it."""

    step: int
    """The step that is to train the batch: the weights before it are of step - 1."""
    oldest: int
    """The step that made the oldest weights from which the batch was sampled."""
    reward: float
    success: float
    """Success over all episodes: an episode without a reward is no success."""
    spread: float
    groups: float
    episodes: float
    truncated: float
    entropy: float | None
    kl: float | None
    """KL by which the step before moved the policy, in nats a token; None if it was not measured."""
    kl_behaviour: float
    tokens: float
    """Mean number of trained tokens in an episode."""

    @classmethod
    def of(cls, step: int, batch: Mapping[str, float], before: Mapping[str, float]) -> Self | None:
        """The batch of `step`, from its metrics and those of the step before; None if nothing was scored."""
        if not batch.get("groups") or batch.get("reward") is None:
            return None
        episodes = batch.get("episodes") or batch["groups"]
        is_moved = before.get("num_updates", 1.0) != 0.0
        return cls(
            step,
            step - 1 - round(batch.get("staleness_max") or 0.0),
            batch["reward"],
            success_over_all(batch),
            batch.get("reward_std") or 0.0,
            batch["groups"],
            episodes,
            batch.get("truncated") or 0.0,
            before.get("entropy"),
            moved({f"train/{name}": value for name, value in before.items()}) if is_moved else 0.0,
            before.get("kl_behaviour_after") or 0.0,
            max(1.0, before.get("num_trained", 0.0) / episodes),
        )


@dataclass(frozen=True, slots=True)
class Standing:
    """The level of weights: how good they are, by the batches around them."""

    step: int
    """The step that made the weights."""
    num: int
    """Number of batches that measured the weights."""
    reward: float
    success: float
    truncated: float
    entropy: float | None

    @classmethod
    def of(cls, step: int, batches: Sequence[Seen]) -> Self:
        entropies = [one.entropy for one in batches if one.entropy is not None]
        return cls(
            step,
            len(batches),
            fmean(one.reward for one in batches),
            fmean(one.success for one in batches),
            fmean(one.truncated for one in batches),
            fmean(entropies) if entropies else None,
        )
