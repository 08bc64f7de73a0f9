"""Rewards that arrive over HTTP: their range, and the turn that a reply's id and choice name."""

from collections.abc import Mapping
from dataclasses import dataclass

from areal_sdk.gateway.errors import bad_request

LARGEST_REWARD = 1e100
"""Largest reward, so that the sum of an episode's rewards stays finite."""


@dataclass(frozen=True, slots=True)
class PostedReward:
    """A reward that a client posted, for one turn or (without a turn) for the whole episode."""

    reward: float
    turn: int | None = None


def check_reward(reward: float) -> None:
    """Raise a 400 for a reward that is out of range or not a number."""
    if not -LARGEST_REWARD <= reward <= LARGEST_REWARD:
        raise bad_request(
            f"reward is {reward:g}; it must be a number between {-LARGEST_REWARD:g} and "
            f"{LARGEST_REWARD:g}",
            param="reward",
        )


def turn_of_choice(
    turns: Mapping[int, int], reply_id: str, choice: int | None, is_repeated: bool
) -> int | None:
    """The index of the turn that a client names by a reply's id and, of several choices, one number.

    `turns` holds the turn of each choice of the reply. None if the session gave no such reply.
    `is_repeated`: another provider gave this id to several replies, so it names none of them.
    """
    if is_repeated:
        raise bad_request(
            f"the provider gave the id {reply_id!r} to several replies: name the reply by its "
            "header x-areal-reply, or give the turn's index, as the session's trace shows it",
            param="turn",
        )
    if choice is not None:
        if turns and choice not in turns:
            raise bad_request(
                f"reply {reply_id!r} has no choice {choice}; it has "
                f"{', '.join(map(str, sorted(turns)))}",
                param="choice",
            )
        return turns.get(choice)
    if len(turns) > 1:
        raise bad_request(
            f"reply {reply_id!r} has {len(turns)} choices, each a turn of its own: say which by "
            '"choice", its index in the reply',
            param="choice",
        )
    return next(iter(turns.values()), None)
