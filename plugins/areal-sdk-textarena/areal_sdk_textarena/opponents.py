"""An opponent that needs no model: a legal move at random, from the seed of the episode."""

import random
import re
from collections.abc import Callable, Mapping, Sequence

from areal_sdk import ConfigError

_LISTED = re.compile(r"(?:available|valid|legal)[^\n]*?(?:moves|actions)[^\n]*:([^\n]*)", re.I)
_MOVE = re.compile(r"\[[^\[\]]+\]")


def random_move(
    game: str, seen: str, generator: random.Random, *, moves: Sequence[str] = ()
) -> str:
    """A move among those that the latest observation lists, else among `moves`."""
    legal = legal_moves(game, seen) or list(moves)
    if not legal:
        raise ConfigError(
            f'opponent "random": {game} does not list its moves; give them, [agent] moves = ["[a]", '
            '"[b]"], or choose opponent "self"'
        )
    return generator.choice(legal)


def legal_moves(game: str, seen: str) -> list[str]:
    """The moves that the last board in `seen` allows; none if it does not say.

    >>> legal_moves("TicTacToe-v0", "Available Moves: '[0]', '[1]'\\nAvailable Moves: '[1]'")
    ['[1]']
    >>> legal_moves("Nim-v0", "pile 0: 0\\npile 1: 2")
    ['[1 1]', '[1 2]']
    """
    read = _BOARDS.get(re.sub(r"-v[0-9].*$", "", game))
    if read is not None:
        return read(seen)
    listed = _LISTED.findall(seen)
    return _MOVE.findall(listed[-1]) if listed else []


def _nim(seen: str) -> list[str]:
    piles: dict[int, int] = {}
    for pile, left in re.findall(r"pile (\d+): (\d+)", seen):
        piles[int(pile)] = int(left)  # the last board counts
    return [f"[{pile} {taken}]" for pile, left in piles.items() for taken in range(1, left + 1)]


def _connect_four(seen: str) -> list[str]:
    *_, board = seen.split("-------------\n")
    top = board.splitlines()[0].split() if board else []
    return [f"[col {column}]" for column, disc in enumerate(top) if disc == "."]


_BOARDS: Mapping[str, Callable[[str], list[str]]] = {"Nim": _nim, "ConnectFour": _connect_four}
