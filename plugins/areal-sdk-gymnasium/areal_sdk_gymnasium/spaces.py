"""Observations as text, and actions from text, for the spaces that words can hold."""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from areal_sdk import ConfigError

MAX_NUMBERS = 64
"""A larger array is a picture, not an observation that can be read."""


def describe(space: Space[Any], value: Any) -> str:
    """An observation in words; ConfigError for a space that words cannot hold.

    >>> describe(spaces.Discrete(16), 3)
    '3'
    >>> describe(spaces.Dict({"at": spaces.Discrete(4), "say": spaces.Text(9)}), {"at": 1, "say": "hi"})
    'at: 1\\nsay: hi'
    """
    match space:
        case spaces.Discrete():
            return str(int(value))
        case spaces.Text():
            return str(value)
        case spaces.Dict():
            return "\n".join(f"{key}: {describe(space[key], value[key])}" for key in space)
        case spaces.Tuple():
            pairs = zip(space.spaces, value, strict=True)
            return ", ".join(describe(inner, part) for inner, part in pairs)
        case spaces.Box() | spaces.MultiDiscrete() | spaces.MultiBinary():
            array = np.asarray(value)
            if array.size <= MAX_NUMBERS:
                return " ".join(f"{number:.4g}" for number in array.flatten().tolist())
        case _:
            pass
    raise ConfigError(
        f"gymnasium: the observation space {space} has no words: wrap the environment so that it "
        f"gives Discrete, Text, Dict, Tuple, or at most {MAX_NUMBERS} numbers"
    )


class Actions(ABC):
    """The legal actions of an environment, and how a model writes one."""

    @property
    @abstractmethod
    def words(self) -> str:
        """The answers that the model may give, in one sentence."""

    @abstractmethod
    def read(self, text: str) -> Any:
        """The action in a model's answer; None for an illegal answer."""


class NamedActions(Actions):
    """One of a few actions, each with a name; its number is understood too."""

    def __init__(self, names: Sequence[str], *, start: int = 0) -> None:
        self._by_name = {name.lower(): start + index for index, name in enumerate(names)}
        self._numbers = range(start, start + len(names))
        self._names = names

    @property
    def words(self) -> str:
        return f"Answer with one of: {', '.join(self._names)}."

    def read(self, text: str) -> int | None:
        """The only action that the text names.

        >>> actions = NamedActions(["left", "right"])
        >>> actions.read("I go Right."), actions.read("left or right?"), actions.read("1")
        (1, None, 1)
        """
        said = text.strip().lower()
        if said in self._by_name:
            return self._by_name[said]
        named = {
            action
            for name, action in self._by_name.items()
            if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", said)
        }
        if not named and re.fullmatch(r"[0-9]{1,9}", said) and int(said) in self._numbers:
            named = {int(said)}
        return named.pop() if len(named) == 1 else None


class NumberActions(Actions):
    """Several whole numbers, each in its bounds."""

    def __init__(self, space: spaces.MultiDiscrete) -> None:
        self._space = space
        low = np.asarray(space.start).flatten().tolist()
        self._bounds = [
            (int(a), int(a) + int(n) - 1)
            for a, n in zip(low, space.nvec.flatten().tolist(), strict=True)
        ]

    @property
    def words(self) -> str:
        bounds = ", ".join(f"{low} to {high}" for low, high in self._bounds)
        return f"Answer with {len(self._bounds)} whole numbers with spaces between: {bounds}."

    def read(self, text: str) -> Any:
        said = re.findall(r"-?[0-9]{1,9}", text)
        if len(said) != len(self._bounds):
            return None
        action = np.array([int(number) for number in said], dtype=self._space.dtype)
        action = action.reshape(self._space.shape)
        return action if self._space.contains(action) else None


class TextActions(Actions):
    """The answer itself is the action."""

    def __init__(self, space: spaces.Text) -> None:
        self._space = space

    @property
    def words(self) -> str:
        return f"Answer with at most {self._space.max_length} letters."

    def read(self, text: str) -> str | None:
        said = text.strip()
        return said if self._space.contains(said) else None


def actions_of(space: Space[Any], names: Sequence[str] = ()) -> Actions:
    """The way in which actions of a space are written; `names` for those of a Discrete one."""
    match space:
        case spaces.Discrete():
            start, count = int(space.start), int(space.n)
            if names and len(names) != count:
                raise ConfigError(
                    f"gymnasium: {len(names)} names for {count} actions: {', '.join(names)}"
                )
            numbers = [str(start + index) for index in range(count)]
            return NamedActions(names or numbers, start=start)
        case spaces.MultiDiscrete():
            return NumberActions(space)
        case spaces.Text():
            return TextActions(space)
        case _:
            pass
    raise ConfigError(
        f"gymnasium: a model cannot write an action of {space}: wrap the environment so that it takes "
        "Discrete, MultiDiscrete or Text actions"
    )
