"""Rewards that arrive over HTTP: their range, and the turn that a reply's id and choice name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from areal_sdk.gateway.errors import bad_request, judged_elsewhere
from areal_sdk.gateway.sessions.replies import SessionReplies

LARGEST_REWARD = 1e100
"""Largest reward, so that the sum of an episode's rewards stays finite."""


@dataclass(frozen=True, slots=True)
class PostedReward:
    """A reward that a client posted, for one turn or (without a turn) for the whole episode."""

    reward: float
    turn: int | None = None


class PostedRewards:
    """The verdicts on one session, in order. A later one replaces an earlier one for the same turn or episode."""

    def __init__(self) -> None:
        self._posted: list[PostedReward] = []
        self._judge = ""

    @property
    def all(self) -> Sequence[PostedReward]:
        return self._posted

    def leave_to(self, judge: str) -> None:
        """Let `judge` alone judge the episode, and refuse rewards that are posted; if it has no name, allow them."""
        self._judge = judge

    def check(self, reward: float, turn: int | str | None, choice: int | None) -> None:
        """Raise the error of a reward that is refused whatever turns the session has."""
        if self._judge:
            raise judged_elsewhere(self._judge)
        check_reward(reward)
        if choice is not None and not isinstance(turn, str):
            raise bad_request(
                'choice says which one of a reply: give the reply\'s id as "turn"', param="choice"
            )

    def add(
        self,
        reward: float,
        turn: int | str | None,
        choice: int | None,
        *,
        replies: SessionReplies,
        num_turns: int,
    ) -> PostedReward:
        """Keep a verdict on a turn, named by its index or by its reply and choice, or on the episode."""
        index = turn if not isinstance(turn, str) else _turn_of(replies, turn, choice)
        if turn is not None and (index is None or not 0 <= index < num_turns):
            raise bad_request(
                f"turn {turn!r} is not one of this session's {num_turns}", param="turn"
            )
        posted = PostedReward(reward, index)
        self._posted.append(posted)
        return posted


def _turn_of(replies: SessionReplies, reply_id: str, choice: int | None) -> int | None:
    turns = replies.turns_of.get(reply_id, {})
    return turn_of_choice(turns, reply_id, choice, replies.is_repeated(reply_id))


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
    """The index of the turn that a client names by a reply's id, and by a choice's number if there are several.

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
