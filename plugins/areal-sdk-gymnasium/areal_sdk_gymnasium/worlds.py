"""Descriptions of known environments: rules, names of actions, observations, success."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium

_HIGHLIGHT = re.compile(r"\x1b\[4[0-9]m(.)\x1b\[0m", re.DOTALL)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_ROW = 12
"""Columns of CliffWalking."""
_PLACES = ("red", "green", "yellow", "blue")


@dataclass(frozen=True, slots=True)
class World:
    """The words for one kind of environment."""

    rules: str = ""
    actions: Sequence[str] = ()
    describe: Callable[[Any], str] | None = None
    """The observation in words; None: the words of its space."""
    is_success: Callable[[float], bool] = lambda last: last > 0
    """Whether an episode that ended by itself, with this last reward, was a success."""
    least: float | None = None
    """The least reward of a legal step; None: that of the table of transitions, if there is one."""


def world_of(name: str) -> World:
    """The world of an environment, by the environment's name without its version; an unknown one
    has no rules.

    >>> world_of("FrozenLake-v1").actions
    ('left', 'down', 'right', 'up')
    """
    kind = re.sub(r"-v[0-9]+$", "", name.rpartition("/")[2])
    return WORLDS.get(kind, World())


def least_reward(env: gymnasium.Env[Any, Any], world: World) -> float | None:
    """The least reward of a legal step; None if it is not known.

    >>> least_reward(gymnasium.make("CliffWalking-v1"), world_of("CliffWalking-v1"))
    -100.0
    """
    table = getattr(env.unwrapped, "P", None)
    if world.least is not None or table is None or world not in WORLDS.values():
        return world.least
    outcomes = (outcome for actions in table.values() for outcome in actions.values())
    return min(float(reward) for outcome in outcomes for _, _, reward, _ in outcome)


def as_plain_text(picture: str) -> str:
    r"""A rendered picture without colours; what was highlighted stands in brackets.

    >>> as_plain_text("\n\x1b[41mS\x1b[0mFF")
    '[S]FF'
    """
    return _COLOUR.sub("", _HIGHLIGHT.sub(r"[\1]", picture)).strip("\n")


def _blackjack(observation: Sequence[int]) -> str:
    total, shown, usable_ace = (int(part) for part in observation)
    ace = ", with an ace that counts 11" if usable_ace else ""
    return f"Your cards: {total}{ace}. The dealer shows {'an ace' if shown == 1 else shown}."


def _cliff(observation: int) -> str:
    row, column = divmod(int(observation), _ROW)
    return f"You are in row {row}, column {column}."


def _taxi(observation: int) -> str:
    rest, goal = divmod(int(observation), 4)
    rest, passenger = divmod(rest, 5)
    row, column = divmod(rest, 5)
    where = "in the taxi" if passenger == 4 else f"at {_PLACES[passenger]}"
    return f"Taxi: row {row}, column {column}. Passenger: {where}. Goal: {_PLACES[goal]}."


WORLDS: Mapping[str, World] = {
    "FrozenLake": World(
        rules="Cross the frozen lake from S to G. F is ice; in a hole H you lose.",
        actions=("left", "down", "right", "up"),
    ),
    "CliffWalking": World(
        rules=(
            "Walk on a grid of 4 rows and 12 columns, from row 3, column 0 to row 3, column 11. "
            "Row 3, columns 1 to 10, is a cliff: whoever falls begins again."
        ),
        actions=("up", "right", "down", "left"),
        describe=_cliff,
        is_success=lambda last: True,  # it ends only at the goal
    ),
    "Taxi": World(
        rules=(
            "Fetch the passenger and bring them to the goal, on a grid of 5 rows and 5 columns with "
            "walls. Red is at row 0, column 0; green at 0, 4; yellow at 4, 0; blue at 4, 3."
        ),
        actions=("south", "north", "east", "west", "pickup", "dropoff"),
        describe=_taxi,
    ),
    "Blackjack": World(
        rules="Blackjack: come nearer to 21 than the dealer, and not above.",
        actions=("stick", "hit"),
        describe=_blackjack,
        least=-1.0,
    ),
}
