"""One game: what each seat sees, its moves, and how it ends; with randomness of its own."""

import contextlib
import io
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import textarena

from areal_sdk import ConfigError

RAW = "-raw"
"""The variant of a game whose observations are what is new, and not everything again."""


class Game:
    """A game between `players` seats.

    TextArena draws from Python's and numpy's global generators. Each call here swaps in the state of
    this game, so games side by side do not change one another.
    """

    def __init__(
        self, name: str, *, players: int, seed: int, arguments: Mapping[str, Any] | None = None
    ) -> None:
        self._name = name
        self._random = random.Random(seed).getstate()
        self._numpy = np.random.RandomState(seed % 2**32).get_state()
        self._players = players
        self.is_over = False
        with self._own_randomness():
            self._env = _make(name, arguments or {})
            try:
                self._env.reset(num_players=players, seed=seed)
            except (AssertionError, ValueError, LookupError) as exc:
                raise ConfigError(f"textarena: {name} with {players} players: {exc}") from exc

    @property
    def seat(self) -> int:
        """The seat whose turn it is."""
        return int(self._env.state.current_player_id)

    def observe(self) -> str:
        """The messages that the seat to move has not seen yet, without its own moves."""
        with self._own_randomness():
            seat, seen = self._env.get_observation()
        action = textarena.ObservationType.PLAYER_ACTION
        told = [
            f"[Player {sender}] {text}" if kind is action else str(text)
            for sender, text, kind in seen
            if not (kind is action and sender == seat)
        ]
        return "\n".join(told) or "It is your turn."

    def play(self, said: str) -> None:
        """Make a move: the answer, in brackets if it has none."""
        move = said if "[" in said else f"[{said.strip()}]"
        with self._own_randomness():
            self.is_over = bool(self._env.step(move)[0])

    def rewards(self) -> list[float]:
        """Rewards by seat; a game without an end earns nobody anything."""
        given = self._env.close()[0] or {}
        return [float(given.get(seat, 0.0)) for seat in range(self._players)]

    @contextlib.contextmanager
    def _own_randomness(self) -> Iterator[None]:
        outside, outside_numpy = random.getstate(), np.random.get_state()
        random.setstate(self._random)
        np.random.set_state(self._numpy)
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # games print
                yield
        finally:
            self._random, self._numpy = random.getstate(), np.random.get_state()
            random.setstate(outside)
            np.random.set_state(outside_numpy)


def game_names() -> list[str]:
    """Games by the name of their default variant."""
    known = textarena.envs.registration.ENV_REGISTRY
    return sorted(name for name in known if f"{name}{RAW}" in known)


def _make(name: str, arguments: Mapping[str, Any]) -> Any:
    """Make the game. ConfigError if it cannot be made here: some games need words, services or a newer Python."""
    if name not in game_names():
        raise ConfigError(f"textarena has no game {name!r}; it has {', '.join(game_names())}")
    try:
        return textarena.make(f"{name}{RAW}", **arguments)
    except LookupError as exc:
        raise ConfigError(
            f"textarena: {name} needs word lists of nltk: python -m nltk.downloader words "
            "averaged_perceptron_tagger_eng"
        ) from exc
    except (SyntaxError, ImportError, OSError, TypeError, ValueError) as exc:
        why = "; it needs Python 3.12" if isinstance(exc, SyntaxError) else ""
        raise ConfigError(
            f"textarena cannot make {name} with {dict(arguments)}: {exc}{why}"
        ) from exc
