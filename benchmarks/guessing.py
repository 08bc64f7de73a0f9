"""The game of examples/agents/guess_number.py, with one token for a message.

`GuessNumber` itself plays: guess a digit in three turns, told "higher" or "lower". In place of a chat
template's thirty tokens a message is one, so that a step takes milliseconds. The example's own
demonstrations teach the format first. There are 7 groups of 8 siblings a step, one for each digit.
"""

import asyncio
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from one_process import Played, Player, trajectory

from areal_sdk import Message, Task
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.trainer import Demonstration
from areal_sdk.trajectory import TrajectoryGroup

EXAMPLE = Path(__file__).parents[1] / "examples" / "agents" / "guess_number.py"
NUM_SIBLINGS = 8
NUM_JUDGED = 50
"""Fresh games for each digit in an evaluation."""
DEMONSTRATION_UPDATES, DEMONSTRATIONS_EACH, DEMONSTRATION_RATE = 200, 64, 3e-3

WORDS = (*"0123456", "higher", "lower", "one digit", "0-6?")
"""The token of a message is its index here."""
TOKENS = {word: token for token, word in enumerate(WORDS)}
VOCABULARY = len(WORDS)


def load_example() -> Any:
    spec = importlib.util.spec_from_file_location("guess_number", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


example = load_example()


def token_of(message: Message) -> int:
    return TOKENS[message["content"]]


async def play_games(player: Player, tasks: Sequence[Task]) -> list[tuple[Played, float]]:
    """Every task once, all at the same time: the tokens of each game, and its reward."""
    games = [example.GuessNumber() for _ in tasks]
    opened = [await game.reset(task) for game, task in zip(games, tasks, strict=True)]
    rows: list[list[tuple[int, float | None]]] = [[(token_of(m), None)] for [m] in opened]
    rewards: dict[int, float] = {}
    while len(rewards) < len(games):
        playing = [number for number in range(len(games)) if number not in rewards]
        tokens_BL = torch.tensor([[token for token, _ in rows[number]] for number in playing])
        tokens, logprobs = (found.tolist() for found in player.sample(tokens_BL))
        for number, token, logprob in zip(playing, tokens, logprobs, strict=True):
            rows[number].append((token, logprob))
            answer = await games[number].step({"role": "assistant", "content": WORDS[token]})
            if answer.done:
                rewards[number] = answer.reward
            else:
                rows[number] += [(token_of(message), None) for message in answer.messages]
    return [(row, rewards[number]) for number, row in enumerate(rows)]


def play(player: Player, step: int) -> Sequence[TrajectoryGroup]:
    groups = []
    tasks = list(example.tasks("train"))
    played = asyncio.run(play_games(player, [t for t in tasks for _ in range(NUM_SIBLINGS)]))
    for index, task in enumerate(tasks):
        rows = [
            trajectory(
                f"{step}-{task.id}-{sibling}",
                task.id,
                row,
                version=player.version,
                reward=reward,
            )
            for sibling, (row, reward) in enumerate(
                played[index * NUM_SIBLINGS : (index + 1) * NUM_SIBLINGS]
            )
        ]
        groups.append(TrajectoryGroup(f"{step}-{task.id}", task.id, tuple(rows)))
    return groups


def evaluate(player: Player) -> float:
    """The share of games that succeed."""
    tasks = [task for task in example.tasks("eval") for _ in range(NUM_JUDGED)]
    rewards = [reward for _, reward in asyncio.run(play_games(player, tasks))]
    return sum(rewards) / len(rewards)


def demonstrate(trainer: RankTrainer) -> None:
    """The supervised warm-up. A guess is every second token."""
    games = [[token_of(message) for message in game] for game in example.demonstrations()]
    rows = [
        Demonstration(tuple(game), tuple(place % 2 == 1 for place in range(len(game))))
        for game in games
    ]
    for update in range(DEMONSTRATION_UPDATES):
        start = update * DEMONSTRATIONS_EACH % len(rows)
        trainer.learn(rows[start : start + DEMONSTRATIONS_EACH], learning_rate=DEMONSTRATION_RATE)
