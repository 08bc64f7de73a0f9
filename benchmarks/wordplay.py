"""The agent files of benchmarks/gauntlet/, played in one process: a word is one token.

The environment of the file itself plays. A message of the player has as many words as the
demonstrations' longest answer; there is no end of turn, so a step takes milliseconds. A word that the
demonstrations do not have is the token `?`.
"""

import asyncio
import importlib.util
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from one_process import Played, Player, trajectory

from areal_sdk import Environment, Message, Task
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.trainer import Demonstration
from areal_sdk.trajectory import TrajectoryGroup

FOLDER = Path(__file__).with_name("gauntlet")
UNKNOWN = "?"
DEMONSTRATION_UPDATES, DEMONSTRATIONS_EACH, DEMONSTRATION_RATE = 300, 64, 3e-3


@dataclass(frozen=True)
class Game:
    """A finished game. `success` is the truth, `reward` what the trainer is told."""

    played: Played
    reward: float
    success: bool


class WordGame:
    """A task of the gauntlet: its environment, its tasks, and the tokens of its words."""

    def __init__(self, name: str) -> None:
        module = load_agent(FOLDER / f"{name}.py")
        self._environment = environment_of(module)
        self._tasks: Callable[[str], Iterator[Task]] = module.tasks
        self.demonstrations: list[list[Message]] = list(module.demonstrations())
        messages = [message for game in self.demonstrations for message in game]
        words = {word for message in messages for word in message["content"].split()}
        self.words = (*sorted(words), UNKNOWN)
        self.token_of = {word: token for token, word in enumerate(self.words)}
        self.turn_length = max(
            len(message["content"].split())
            for message in messages
            if message["role"] == "assistant"
        )

    @property
    def vocabulary(self) -> int:
        return len(self.words)

    def tasks(self, split: str) -> list[Task]:
        """The tasks in a mixed order, always the same."""
        found = list(self._tasks(split))
        random.Random(0).shuffle(found)
        return found

    def tokens(self, message: Message) -> list[int]:
        unknown = self.token_of[UNKNOWN]
        return [self.token_of.get(word, unknown) for word in message["content"].split()]

    def demonstrate(self, trainer: RankTrainer) -> None:
        """The supervised warm-up."""
        rows = [self._demonstration(game) for game in self.demonstrations]
        for update in range(DEMONSTRATION_UPDATES):
            start = update * DEMONSTRATIONS_EACH % len(rows)
            batch = rows[start : start + DEMONSTRATIONS_EACH]
            trainer.learn(batch, learning_rate=DEMONSTRATION_RATE)

    def _demonstration(self, game: Sequence[Message]) -> Demonstration:
        tokens: list[int] = []
        mask: list[bool] = []
        for message in game:
            of_message = self.tokens(message)
            tokens += of_message
            mask += [message["role"] == "assistant"] * len(of_message)
        return Demonstration(tuple(tokens), tuple(mask))

    def play(self, player: Player, tasks: Sequence[Task]) -> list[Game]:
        """Every task once, all at the same time."""
        return asyncio.run(self._play(player, tasks))

    async def _play(self, player: Player, tasks: Sequence[Task]) -> list[Game]:
        worlds = [self._environment() for _ in tasks]
        opened = [await world.reset(task) for world, task in zip(worlds, tasks, strict=True)]
        rows: list[list[tuple[int, float | None]]] = [self._given(first) for first in opened]
        rewards = [0.0] * len(rows)
        ended: dict[int, bool] = {}
        while len(ended) < len(rows):
            playing = [number for number in range(len(rows)) if number not in ended]
            self._sample_turns(player, [rows[number] for number in playing])
            for number in playing:
                said = [self.words[token] for token, _ in rows[number][-self.turn_length :]]
                answer = await worlds[number].step({"role": "assistant", "content": " ".join(said)})
                rewards[number] += answer.reward or 0.0
                if answer.done:
                    ended[number] = bool(answer.success)
                rows[number] += self._given(answer.messages)
        return [Game(row, rewards[number], ended[number]) for number, row in enumerate(rows)]

    def _given(self, messages: Sequence[Message]) -> list[tuple[int, float | None]]:
        return [(token, None) for message in messages for token in self.tokens(message)]

    def _sample_turns(self, player: Player, rows: Sequence[list[tuple[int, float | None]]]) -> None:
        """One message of the player after each of the rows; rows of one length are sampled together."""
        for length in sorted({len(row) for row in rows}):
            alike = [row for row in rows if len(row) == length]
            for _ in range(self.turn_length):
                tokens_BL = torch.tensor([[token for token, _ in row] for row in alike])
                tokens, logprobs = (found.tolist() for found in player.sample(tokens_BL))
                for row, token, logprob in zip(alike, tokens, logprobs, strict=True):
                    row.append((token, logprob))


def load_agent(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"gauntlet_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def environment_of(module: ModuleType) -> type[Environment]:
    """The one environment that an agent file defines."""
    [found] = [
        found
        for found in vars(module).values()
        if isinstance(found, type) and issubclass(found, Environment) and found is not Environment
    ]
    return found


def groups_of(
    games: Sequence[Game], tasks: Sequence[Task], *, version: int, step: int
) -> list[TrajectoryGroup]:
    """Neighbouring games of equal tasks, as the groups of a step."""
    siblings = len(games) // len(tasks)
    groups = []
    for place, task in enumerate(tasks):
        name = f"{step}-{place}-{task.id}"
        rows = tuple(
            trajectory(f"{name}-{i}", task.id, game.played, version=version, reward=game.reward)
            for i, game in enumerate(games[place * siblings : (place + 1) * siblings])
        )
        groups.append(TrajectoryGroup(name, task.id, rows))
    return groups
