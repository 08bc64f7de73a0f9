"""A delayed reward: what is sown on the first day decides, six turns later, whether anything grows."""

import random
from collections.abc import Iterator, Sequence

from areal_sdk import Environment, Message, StepResult, Task

GROWS = {"clay": "1", "sand": "2", "peat": "3", "loam": "4", "silt": "5", "chalk": "6"}
NUM_DAYS = 6
NUM_DEMONSTRATIONS = 2000


class Garden(Environment):
    """Success is the right seed for the soil. What is said on later days changes nothing."""

    async def reset(self, task: Task) -> Sequence[Message]:
        self.soil: str = task.data["soil"]
        self.sown: str | None = None
        self.num_left = NUM_DAYS
        return [{"role": "user", "content": self.soil}]

    async def step(self, message: Message) -> StepResult:
        self.num_left -= 1
        if self.sown is None:
            self.sown = (message.get("content") or "").strip()
        if self.num_left:
            return StepResult([{"role": "user", "content": "day"}])
        grows = self.sown == GROWS[self.soil]
        return StepResult(reward=float(grows), done=True, success=grows)


def tasks(split: str) -> Iterator[Task]:
    """There are six soils, so the held-out tasks are training tasks too."""
    for soil in GROWS:
        yield Task(id=f"{split}-{soil}", data={"soil": soil})


def demonstrations() -> Iterator[list[Message]]:
    """A gardener who knows the seed one time in five, and says any number on later days."""
    generator = random.Random(0)
    for game in range(NUM_DEMONSTRATIONS):
        soil = list(GROWS)[game % len(GROWS)]
        messages: list[Message] = []
        for day in range(NUM_DAYS):
            knows = day == 0 and generator.random() < 0.2
            said = GROWS[soil] if knows else generator.choice("123456")
            messages.append({"role": "user", "content": "day" if day else soil})
            messages.append({"role": "assistant", "content": said})
        yield messages
