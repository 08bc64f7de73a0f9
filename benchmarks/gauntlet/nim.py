"""Nim against an opponent who blunders: take one to three, and take the last one."""

import random
from collections.abc import Iterator, Sequence

from areal_sdk import Environment, Message, StepResult, Task

MOST = 3
PILES = range(5, 16)
NUM_OPPONENTS = 40
NUM_DEMONSTRATIONS = 2000


class Nim(Environment):
    """Success is to take the last one. A move that is none loses at once."""

    async def reset(self, task: Task) -> Sequence[Message]:
        self.pile: int = task.data["pile"]
        self.opponent = random.Random(task.data["opponent"])
        return [_user(self.pile)]

    async def step(self, message: Message) -> StepResult:
        move = (message.get("content") or "").strip()
        if move not in ("1", "2", "3") or int(move) > self.pile:
            return StepResult(reward=0.0, done=True, success=False)
        self.pile -= int(move)
        if self.pile == 0:
            return StepResult(reward=1.0, done=True, success=True)
        self.pile -= answer(self.pile, self.opponent)
        if self.pile == 0:
            return StepResult(reward=0.0, done=True, success=False)
        return StepResult([_user(self.pile)])


def answer(pile: int, generator: random.Random) -> int:
    """The opponent sees a win that is one move away, and otherwise takes any number."""
    return pile if pile <= MOST else generator.randint(1, MOST)


def tasks(split: str) -> Iterator[Task]:
    """Opponents differ in what they take; every fifth one is held out."""
    for pile in PILES:
        for opponent in range(NUM_OPPONENTS):
            if (opponent % 5 == 0) == (split == "eval"):
                yield Task(id=f"{pile}-{opponent}", data={"pile": pile, "opponent": opponent})


def demonstrations() -> Iterator[list[Message]]:
    """Games of two players who take any number that is there."""
    generator = random.Random(0)
    for game in range(NUM_DEMONSTRATIONS):
        pile = PILES[game % len(PILES)]
        messages: list[Message] = []
        while pile > 0:
            move = generator.randint(1, min(MOST, pile))
            messages.append(_user(pile))
            messages.append({"role": "assistant", "content": str(move)})
            pile -= move
            if pile:
                pile -= answer(pile, generator)
        yield messages


def _user(pile: int) -> Message:
    return {"role": "user", "content": str(pile)}
