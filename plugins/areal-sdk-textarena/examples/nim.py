"""A model learns Nim from nothing: the rules from games of two chance players, then to win from self-play.

    areal-sdk train examples/nim.py --config examples/nim.toml

Evaluations are games against an opponent that makes legal moves by chance, from both seats. Every
game begins with the same piles, so held-out tasks differ from training tasks in the opponent's moves alone.
"""

import random
from collections.abc import Iterator

from areal_sdk import Message, Task
from areal_sdk_textarena.agent import TextArena
from areal_sdk_textarena.dataset import tasks as textarena_tasks
from areal_sdk_textarena.games import Game
from areal_sdk_textarena.opponents import random_move

NIM = "Nim-v0"
PILES = {"piles": [2, 3]}


class Nim(TextArena):
    def __init__(self) -> None:
        super().__init__(max_moves=10)


def tasks(split: str) -> Iterator[Task]:
    return textarena_tasks(split, games=NIM, arguments=PILES, count=64, eval_count=32)


def demonstrations() -> Iterator[list[Message]]:
    chance = random.Random(0)
    for number in range(800):
        game = Game(NIM, players=2, seed=number, arguments=PILES)
        seats: list[list[Message]] = [[], []]
        while not game.is_over:
            seat, told = game.seat, game.observe()
            if not seats[seat]:
                told = f"You are Player {seat}.\n{told}"
            seats[seat].append({"role": "user", "content": told})
            seen = "\n".join(str(message["content"]) for message in seats[seat])
            move = random_move(NIM, seen, chance)
            seats[seat].append({"role": "assistant", "content": move})
            game.play(move)
        yield from (messages for messages in seats if messages)
