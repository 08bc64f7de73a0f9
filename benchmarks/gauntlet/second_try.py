"""Self-correction: the answer is one of two letters; after a "no" the other one is right."""

import random
from collections.abc import Iterator, Sequence
from itertools import permutations

from areal_sdk import Environment, Message, StepResult, Task

LETTERS, NUM_TRIES = "abcdefgh", 2
NUM_DEMONSTRATIONS = 2000


class SecondTry(Environment):
    """Success is the right letter at the first or second try."""

    async def reset(self, task: Task) -> Sequence[Message]:
        self.answer: str = task.data["answer"]
        self.num_left = NUM_TRIES
        return [{"role": "user", "content": " ".join(task.data["letters"])}]

    async def step(self, message: Message) -> StepResult:
        self.num_left -= 1
        if (message.get("content") or "").strip() == self.answer:
            return StepResult(reward=1.0, done=True, success=True)
        if self.num_left == 0:
            return StepResult(reward=0.0, done=True, success=False)
        return StepResult([{"role": "user", "content": "no"}])


def tasks(split: str) -> Iterator[Task]:
    """Every fifth pair of letters is held out, with both answers."""
    for number, pair in enumerate(permutations(LETTERS, 2)):
        if (number % 5 == 0) == (split == "eval"):
            for answer in pair:
                yield Task(
                    id=f"{pair[0]}{pair[1]}-{answer}", data={"letters": pair, "answer": answer}
                )


def demonstrations() -> Iterator[list[Message]]:
    """A player who names any letter at times, and often repeats what was wrong."""
    generator = random.Random(0)
    known = list(tasks("train"))
    for _ in range(NUM_DEMONSTRATIONS):
        task = generator.choice(known)
        letters = task.data["letters"]
        messages: list[Message] = [{"role": "user", "content": " ".join(letters)}]
        for _ in range(NUM_TRIES):
            guess = generator.choice(letters if generator.random() < 0.6 else LETTERS)
            messages.append({"role": "assistant", "content": guess})
            if guess == task.data["answer"]:
                break
            messages.append({"role": "user", "content": "no"})
        yield messages if messages[-1]["role"] == "assistant" else messages[:-1]
