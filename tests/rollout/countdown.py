"""An environment that counts down."""

from areal_sdk.environment import Environment, StepResult
from areal_sdk.types import Message, Task


class Countdown(Environment):
    """Wants the word `down` so many times."""

    closed = 0

    def __init__(self, rewards: tuple[float | None, ...] = (None, None, 1.0)) -> None:
        self.rewards = rewards
        self.num_steps = 0

    async def reset(self, task: Task) -> list[Message]:
        return [{"role": "user", "content": "count"}]

    async def step(self, message: Message) -> StepResult:
        reward = self.rewards[self.num_steps]
        self.num_steps += 1
        done = self.num_steps == len(self.rewards)
        reply: list[Message] = [] if done else [{"role": "user", "content": f"{self.num_steps}"}]
        return StepResult(reply, reward, done, success=done or None)

    async def close(self) -> None:
        Countdown.closed += 1
