"""Tasks: games with a seed, the number of players and the seat of the model."""

from collections.abc import Iterator
from typing import Any

from areal_sdk import ConfigError, Task
from areal_sdk.environment import seeds_of
from areal_sdk_textarena.games import Game


def tasks(
    split: str,
    *,
    games: str | list[str],
    players: int = 2,
    arguments: dict[str, Any] | None = None,
    count: int = 1000,
    eval_count: int = 100,
    seed: int = 0,
) -> Iterator[Task]:
    """`count` games, the names of `games` in turn; the model's seat goes round.

    arguments: keyword arguments of the game, such as `piles` of Nim.
    Held-out games have other seeds. A game without chance begins alike for every seed: then an evaluation
    says how it is played, not that it was seen before.
    """
    names = [games] if isinstance(games, str) else games
    if not names:
        raise ConfigError("games = []: name at least one, such as TicTacToe-v0")
    for name in names:  # a game that cannot be played is an error before the run
        Game(name, players=players, seed=0, arguments=arguments)
    seeds = seeds_of(split, count=count, eval_count=eval_count, seed=seed)
    for index, game_seed in enumerate(seeds):
        name = names[index % len(names)]
        data: dict[str, Any] = {
            "game": name,
            "family": name,
            "players": players,
            "seat": index // len(names) % players,
            "seed": game_seed,
        }
        if arguments:
            data["arguments"] = arguments
        yield Task(f"{name}-{split}-{game_seed}", data)
