"""Guess a digit in three turns, told "higher" or "lower": an environment, and a model from nothing.

    areal-sdk train examples/agents/guess_number.py --config examples/agents/guess_number.toml

The model is `tiny`: random weights, made on the spot. A few weak demonstrations teach it the
format (supervised warm-up); reinforcement learning teaches it to halve the range.

The game has seven secrets, so the held-out tasks are training tasks too, and a run says so: what is
learned is how to play, not which secret to name.
"""

import random
from collections.abc import Iterator, Sequence

from areal_sdk import Environment, Message, StepResult, Task

HIGHEST = 6
NUM_GUESSES = 3
QUESTION = f"0-{HIGHEST}?"


class GuessNumber(Environment):
    """Success is to name the digit within three guesses: halving the range always does."""

    async def reset(self, task: Task) -> Sequence[Message]:
        self.secret: int = task.data["secret"]
        self.num_left = NUM_GUESSES
        return [_user(QUESTION)]

    async def step(self, message: Message) -> StepResult:
        guess = (message.get("content") or "").strip()
        self.num_left -= 1
        if guess == str(self.secret):
            return StepResult(reward=1.0, done=True, success=True)
        if self.num_left == 0:
            return StepResult(reward=0.0, done=True, success=False)
        return StepResult([_user(hint(guess, self.secret))])


def hint(guess: str, secret: int) -> str:
    if not (len(guess) == 1 and guess.isascii() and guess.isdecimal()):
        return "one digit"
    return "higher" if int(guess) < secret else "lower"


def tasks(split: str) -> Iterator[Task]:
    for secret in range(HIGHEST + 1):
        yield Task(id=f"{split}-{secret}", data={"secret": secret})


def demonstrations() -> Iterator[list[Message]]:
    """Games of a weak player: it follows the hints nine times in ten and guesses otherwise."""
    generator = random.Random(0)
    for game in range(2000):
        secret, low, high = game % (HIGHEST + 1), 0, HIGHEST
        messages = [_user(QUESTION)]
        for _ in range(NUM_GUESSES):
            follows = generator.random() < 0.9
            guess = generator.randint(low, high) if follows else generator.randint(0, HIGHEST)
            messages.append({"role": "assistant", "content": str(guess)})
            if guess == secret:
                break
            answer = hint(str(guess), secret)
            if answer == "higher":
                low = max(low, min(guess + 1, high))
            else:
                high = min(high, max(guess - 1, low))
            messages.append(_user(answer))
        yield messages if messages[-1]["role"] == "assistant" else messages[:-1]


def _user(content: str) -> Message:
    return {"role": "user", "content": content}
