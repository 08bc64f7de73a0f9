"""Verdicts: what agents and reward functions return, what was posted over HTTP, and their sums."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from areal_sdk.gateway.sessions.posted_rewards import PostedReward
from areal_sdk.process import clean_text
from areal_sdk.reward import as_outcome
from areal_sdk.types import Episode, Outcome, OutcomeKind

Weighted = tuple[float, Outcome]


def read_verdict(result: Any, episode: Episode) -> Outcome:
    """`result` as an `Outcome`; ValueError if it is not a verdict.

    numpy and torch scalars count as numbers.
    """
    if hasattr(result, "item") and not isinstance(result, Outcome):
        result = result.item()
    outcome = as_outcome(result, episode)
    per_turn = tuple(None if reward is None else float(reward) for reward in outcome.turn_rewards)
    outcome = replace(outcome, turn_rewards=per_turn)
    numbers = (
        *(outcome.reward, *outcome.turn_rewards),
        *(*outcome.by_policy.values(), *outcome.metrics.values()),
    )
    if not all(number is None or math.isfinite(number) for number in numbers):
        raise ValueError(f"rewards and metrics must be finite numbers: {outcome}")
    if outcome.turn_rewards and len(outcome.turn_rewards) != len(episode.turns):
        raise ValueError(
            f"{len(outcome.turn_rewards)} turn rewards for an episode of {len(episode.turns)} turns"
        )
    trained = {turn.policy for turn in episode.turns if turn.excluded is None}
    if outcome.by_policy and (missing := trained - outcome.by_policy.keys()):
        raise ValueError(
            f"by_policy has rewards of {', '.join(outcome.by_policy)} and none of "
            f"{', '.join(map(repr, sorted(missing)))}, which the episode trains: give each policy one"
        )
    if outcome.kind is OutcomeKind.REWARD and outcome.reward is None:
        raise ValueError("an outcome of kind `reward` needs a reward: use Outcome.scored")
    if all(reward is None for reward in per_turn):
        outcome = replace(outcome, turn_rewards=())  # no turn has one: the episode's is trained
    return outcome


def portable(outcome: Outcome) -> Outcome:
    """The outcome with plain Python numbers, and with text that any process can take."""
    return replace(
        outcome,
        reward=None if outcome.reward is None else float(outcome.reward),
        turn_rewards=tuple(None if r is None else float(r) for r in outcome.turn_rewards),
        by_policy={clean_text(str(name)): float(r) for name, r in outcome.by_policy.items()},
        success=None if outcome.success is None else bool(outcome.success),
        metrics={clean_text(str(name)): float(value) for name, value in outcome.metrics.items()},
        message=clean_text(str(outcome.message)),
        trace=clean_text(outcome.trace),
    )


def combine(
    verdicts: Mapping[str, Weighted], *, num_turns: int, last_turns: Collection[int] = ()
) -> Outcome:
    """The weighted sum of the verdicts. It abstains if one verdict abstains: a sum without one of its terms is another
    quantity, not a lower reward. `last_turns` has the last turn of each policy, if there are several.

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
        turn_rewards=_per_turn(list(verdicts.values()), num_turns, last_turns or {num_turns - 1}),
        by_policy=_per_policy(list(verdicts.values())),
        metrics=metrics,
    )


def _per_turn(
    verdicts: Sequence[Weighted], num_turns: int, last_turns: Collection[int]
) -> tuple[float | None, ...]:
    """The sum for each turn, if any verdict has turn rewards. Others count for the last turn of each policy."""
    if not any(outcome.turn_rewards for _, outcome in verdicts):
        return ()
    total: list[float | None] = [None] * num_turns
    for weight, outcome in verdicts:
        whole = [outcome.reward if turn in last_turns else None for turn in range(num_turns)]
        per_turn = outcome.turn_rewards or whole
        for turn, reward in enumerate(per_turn):
            if reward is not None:
                total[turn] = (total[turn] or 0.0) + weight * reward
    return tuple(total)


def _per_policy(verdicts: Sequence[Weighted]) -> dict[str, float]:
    """The sum for each policy, if any verdict has rewards of policies. A verdict without counts for all of them.

    >>> zero_sum = Outcome.scored(0.0, by_policy={"white": 1.0, "black": -1.0})
    >>> _per_policy([(1.0, zero_sum), (0.5, Outcome.scored(1.0))])
    {'white': 1.5, 'black': -0.5}
    """
    names = {name: None for _, outcome in verdicts for name in outcome.by_policy}
    return {
        name: sum(weight * o.by_policy.get(name, o.reward or 0.0) for weight, o in verdicts)
        for name in names
    }


def posted_outcome(posted: Sequence[PostedReward], *, num_turns: int) -> Outcome | None:
    """The posted rewards: the latest for each turn, and for the episode. None if there is none.

    >>> one_turn, episode = PostedReward(0.25, turn=0), PostedReward(1.0)
    >>> posted_outcome([one_turn, episode], num_turns=2).turn_rewards
    (0.25, 1.0)
    """
    whole, by_turn = _latest(posted)
    if whole is not None:
        return with_posted(Outcome.scored(whole), posted, num_turns=num_turns)
    if not by_turn:
        return None
    return Outcome.scored(sum(by_turn.values()), turn_rewards=_in_order(by_turn, num_turns))


def with_posted(returned: Outcome, posted: Sequence[PostedReward], *, num_turns: int) -> Outcome:
    """The verdict that an agent returned and the rewards posted to its session, in one verdict.

    If rewards were posted for turns and the agent returned one for the episode alone, this one is added to the reward of
    the last turn. ValueError if a turn, or the episode, has a posted and a returned reward that differ.

    >>> with_posted(Outcome.scored(1.0), [PostedReward(0.25, turn=0)], num_turns=2).turn_rewards
    (0.25, 1.0)
    >>> with_posted(Outcome.scored(1.0), [PostedReward(0.5)], num_turns=2)
    Traceback (most recent call last):
        ...
    ValueError: a reward of 0.5 was posted for the episode, and 1 was returned: give one of them
    """
    if not posted or returned.kind is OutcomeKind.ERROR:
        return returned
    if returned.reward is None:
        unused = f"{len(posted)} posted rewards are not used"
        why = returned.message or "the agent abstained"
        return replace(returned, message=f"{why}; {unused}")
    whole, by_turn = _latest(posted)
    own = {turn: r for turn, r in enumerate(returned.turn_rewards) if r is not None}
    _check_equal("the episode", whole, returned.reward)
    for turn in own.keys() & by_turn.keys():
        _check_equal(f"turn {turn}", by_turn[turn], own[turn])
    if not by_turn:
        return returned
    total = {**by_turn, **own}
    if not own:
        total[num_turns - 1] = total.get(num_turns - 1, 0.0) + returned.reward
    return replace(
        returned,
        reward=returned.reward + sum(r for turn, r in by_turn.items() if turn not in own),
        success=returned.reward == 1.0 if returned.success is None else returned.success,
        turn_rewards=_in_order(total, num_turns),
    )


def posted_for(chosen: Sequence[int], posted: Sequence[PostedReward]) -> list[PostedReward]:
    """The posted rewards of an episode that has only the `chosen` turns of its session, with the turns counted anew.

    >>> posted_for([2, 0], [PostedReward(1.0, turn=2), PostedReward(0.5)])
    [PostedReward(reward=1.0, turn=0), PostedReward(reward=0.5, turn=None)]
    """
    places = {turn: place for place, turn in enumerate(chosen)}
    for reward in posted:
        if reward.turn is not None and reward.turn not in places:
            raise ValueError(
                f"a reward of {reward.reward:g} was posted for turn {reward.turn}, which the "
                "returned episode leaves out: keep the turn, or post no reward for it"
            )
    return [replace(r, turn=None if r.turn is None else places[r.turn]) for r in posted]


def by_completion(
    rewards: Mapping[str, float], turns_of_reply: Mapping[str, Mapping[int, int]], *, num_turns: int
) -> Outcome:
    """The outcome of AReaL's rewards by completion id: each is the reward of that completion's turn."""
    if not rewards:
        return Outcome.abstained("the agent returned no rewards")
    per_turn: list[float | None] = [None] * num_turns
    for reply_id, reward in rewards.items():
        turns = tuple(turns_of_reply.get(reply_id, {}).values())
        if not turns:
            raise ValueError(
                f"{reply_id!r} is not the id of a completion of this episode: return a number, or "
                "{completion.id: number}"
            )
        if len(turns) > 1:
            raise ValueError(f"{reply_id!r} has {len(turns)} choices: whose reward is it?")
        per_turn[turns[0]] = float(reward)
    return Outcome.scored(sum(map(float, rewards.values())), turn_rewards=tuple(per_turn))


def _latest(posted: Sequence[PostedReward]) -> tuple[float | None, dict[int, float]]:
    """The latest reward for the episode, and the latest for each turn."""
    latest = {reward.turn: reward.reward for reward in posted}
    return latest.get(None), {turn: r for turn, r in latest.items() if turn is not None}


def _check_equal(what: str, posted: float | None, returned: float) -> None:
    if posted is not None and posted != returned:
        raise ValueError(
            f"a reward of {posted:g} was posted for {what}, and {returned:g} was returned: give "
            "one of them"
        )


def _in_order(by_turn: Mapping[int, float], num_turns: int) -> tuple[float | None, ...]:
    return tuple(by_turn.get(turn) for turn in range(num_turns))
