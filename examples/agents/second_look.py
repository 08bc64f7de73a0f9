"""A workflow: answer, then look again, with a reward for each of the two turns.

    areal-sdk train examples/agents/second_look.py --model smollm2

The second turn is rewarded for what it changes, so that a good first answer is left alone.
"""

import random
from collections.abc import Iterator

from areal_sdk import EpisodeContext, Message, Outcome, RolloutWorkflow, Task

LETTERS = "abcdefgh"


class SecondLook(RolloutWorkflow):
    async def run_episode(self, task: Task, context: EpisodeContext) -> Outcome:
        messages: list[Message] = [{"role": "user", "content": task.data["question"]}]
        first = await context.generate(messages, max_new_tokens=16)
        messages += [first.message, {"role": "user", "content": "Look again. Only the word."}]
        second = await context.generate(messages, max_new_tokens=16)
        before, after = (float(t.text.strip() == task.data["answer"]) for t in (first, second))
        return Outcome.scored(
            before + (after - before), turn_rewards=(before, after - before), success=after == 1.0
        )


def tasks(split: str) -> Iterator[Task]:
    """Spell a word backwards."""
    generator = random.Random(split)
    seen: set[str] = set()
    while len(seen) < (400 if split == "train" else 100):
        word = "".join(generator.sample(LETTERS, 4 if split == "train" else 5))
        if word not in seen:
            seen.add(word)
            question = f"Write {' '.join(word)} backwards, as one word."
            yield Task(f"{split}-{word}", {"question": question, "answer": word[::-1]})
