"""From what agents and rewards return to one verdict; nothing in between becomes a zero."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from areal_sdk.reward import as_outcome
from areal_sdk.types import Episode, Outcome, OutcomeKind

Weighted = tuple[float, Outcome]


def read_verdict(result: Any, episode: Episode) -> Outcome:
    """The `Outcome` that `result` stands for; ValueError for what is not a verdict.

    numpy and torch scalars count as numbers.
    """
    if hasattr(result, "item") and not isinstance(result, Outcome):
        result = result.item()
    outcome = as_outcome(result, episode)
    per_turn = tuple(None if reward is None else float(reward) for reward in outcome.turn_rewards)
    outcome = replace(outcome, turn_rewards=per_turn)
    numbers = (outcome.reward, *outcome.turn_rewards, *outcome.metrics.values())
    if not all(number is None or math.isfinite(number) for number in numbers):
        raise ValueError(f"rewards and metrics must be finite numbers: {outcome}")
    if outcome.turn_rewards and len(outcome.turn_rewards) != len(episode.turns):
        raise ValueError(
            f"{len(outcome.turn_rewards)} turn rewards for an episode of {len(episode.turns)} turns"
        )
    if outcome.kind is OutcomeKind.REWARD and outcome.reward is None:
        raise ValueError("an outcome of kind `reward` needs a reward: use Outcome.scored")
    return outcome


def combine(verdicts: Mapping[str, Weighted], *, num_turns: int) -> Outcome:
    """The weighted sum of the verdicts. If one abstains the whole does: a sum without a term
    is another quantity, not a lower reward.

    >>> half = Outcome.scored(0.5)
    >>> combine({"style": (2.0, half), "answer": (1.0, Outcome.scored(1.0))}, num_turns=1).reward
    2.0
    >>> no_key = Outcome.abstained("no key")
    >>> combine({"style": (2.0, half), "answer": (1.0, no_key)}, num_turns=1).message
    "reward 'answer': no key"
    """
    for name, (_, outcome) in verdicts.items():
        if outcome.kind is OutcomeKind.ABSTAIN or outcome.reward is None:
            return Outcome.abstained(f"reward {name!r}: {outcome.message or 'it gave no verdict'}")
    metrics: dict[str, float] = {}
    for name, (_, outcome) in verdicts.items():
        metrics[f"reward/{name}"] = outcome.reward or 0.0
        metrics.update({f"{name}/{key}": value for key, value in outcome.metrics.items()})
    outcomes = [outcome for _, outcome in verdicts.values()]
    claims = [outcome.success for outcome in outcomes if outcome.success is not None]
    return Outcome.scored(
        sum(weight * (outcome.reward or 0.0) for weight, outcome in verdicts.values()),
        success=all(claims) if claims else all(outcome.reward == 1.0 for outcome in outcomes),
        turn_rewards=_per_turn(list(verdicts.values()), num_turns),
        metrics=metrics,
    )


def _per_turn(verdicts: Sequence[Weighted], num_turns: int) -> tuple[float | None, ...]:
    """Turn by turn if any reward is; one that is not counts for the last turn, where it is known."""
    if not any(outcome.turn_rewards for _, outcome in verdicts):
        return ()
    total: list[float | None] = [None] * num_turns
    for weight, outcome in verdicts:
        per_turn = outcome.turn_rewards or (*[None] * (num_turns - 1), outcome.reward)
        for turn, reward in enumerate(per_turn):
            if reward is not None:
                total[turn] = (total[turn] or 0.0) + weight * reward
    return tuple(total)
