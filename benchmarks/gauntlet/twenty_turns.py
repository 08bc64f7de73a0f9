"""Twenty turns and one reward at the end: answer each of four letters with its own sign."""

import random
from collections.abc import Iterator, Sequence

from areal_sdk import Environment, Message, StepResult, Task

SIGNS = {"a": "w", "b": "x", "c": "y", "d": "z"}
NUM_TURNS, NUM_RIGHT = 20, 16
NUM_TASKS, NUM_DEMONSTRATIONS = 1000, 500


class TwentyTurns(Environment):
    """Success is at least 16 right answers of 20."""

    async def reset(self, task: Task) -> Sequence[Message]:
        self.letters: str = task.data["letters"]
        self.answers: list[str] = []
        return [{"role": "user", "content": self.letters[0]}]

    async def step(self, message: Message) -> StepResult:
        self.answers.append((message.get("content") or "").strip())
        if len(self.answers) < NUM_TURNS:
            return StepResult([{"role": "user", "content": self.letters[len(self.answers)]}])
        pairs = zip(self.letters, self.answers, strict=True)
        succeeds = sum(SIGNS[letter] == answer for letter, answer in pairs) >= NUM_RIGHT
        return StepResult(reward=float(succeeds), done=True, success=succeeds)


def tasks(split: str) -> Iterator[Task]:
    generator = random.Random(split)
    for number in range(NUM_TASKS if split == "train" else NUM_TASKS // 5):
        letters = "".join(generator.choices("abcd", k=NUM_TURNS))
        yield Task(id=f"{split}-{number}", data={"letters": letters})


def demonstrations() -> Iterator[list[Message]]:
    """A player who is right two times in three, and gives any sign otherwise."""
    generator = random.Random(0)
    for task, _ in zip(tasks("train"), range(NUM_DEMONSTRATIONS), strict=False):
        messages: list[Message] = []
        for letter in task.data["letters"]:
            right = generator.random() < 0.64
            answer = SIGNS[letter] if right else generator.choice("wxyz")
            messages.append({"role": "user", "content": letter})
            messages.append({"role": "assistant", "content": answer})
        yield messages
