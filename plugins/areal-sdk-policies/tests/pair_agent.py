"""A planner and a coder that do not read each other, so that a policy's episodes do not depend on who else learns."""

from collections.abc import Iterator

from areal_sdk import Agent, EpisodeContext, Outcome, Task

WANTED = {"planner": range(97, 123), "coder": range(48, 58)}
"""The tokens that each policy is rewarded for."""


class Pair(Agent):
    async def run(self, task: Task, context: EpisodeContext) -> Outcome:
        rewards = {}
        for policy, wanted in WANTED.items():
            asked = [{"role": "user", "content": f"{policy} {task.id}"}]
            turn = await context.generate(asked, max_new_tokens=8, policy=policy)
            rewards[policy] = sum(token in wanted for token in turn.output_tokens) / 8
        return Outcome.scored(sum(rewards.values()), by_policy=rewards)


def tasks(split: str) -> Iterator[Task]:
    for number in range(4 if split == "eval" else 32):
        yield Task(f"{split}-{number}", {"seed": number})
