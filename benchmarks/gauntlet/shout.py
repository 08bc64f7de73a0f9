"""A format: say a word in capital letters, with an exclamation mark. For smollm2."""

from collections.abc import Iterator, Sequence

from areal_sdk import Environment, Message, StepResult, Task

WORDS = (
    "apple river table window garden summer winter yellow orange silver candle pocket "
    "forest bridge castle dragon button mirror ladder basket kitchen mountain island ocean "
    "pencil paper flower butter bottle carpet pillow saddle turtle rabbit monkey tiger"
)


class Shout(Environment):
    """Half of the reward is for the capitals, half for the mark. Success is "APPLE!" for "apple"."""

    async def reset(self, task: Task) -> Sequence[Message]:
        self.word: str = task.data["word"]
        return [{"role": "user", "content": f"Shout this word: {self.word}"}]

    async def step(self, message: Message) -> StepResult:
        said = (message.get("content") or "").strip()
        is_loud = said.rstrip("!.") == self.word.upper()
        ends_well = said.endswith("!") and said.count("!") == 1 and " " not in said
        return StepResult(
            reward=(is_loud + ends_well) / 2, done=True, success=is_loud and ends_well
        )


def tasks(split: str) -> Iterator[Task]:
    """Every fourth word is held out."""
    for number, word in enumerate(WORDS.split()):
        if (number % 4 == 0) == (split == "eval"):
            yield Task(id=word, data={"word": word})
