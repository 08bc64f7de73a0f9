"""A planner and a coder, each a policy of its own, from one base model.

areal-sdk train examples/agents/two_roles.py --config examples/agents/two_roles.toml

The planner must plan in letters, and the coder, who reads the plan, must answer in digits. The reward of one is no
reward of the other. `two_roles.toml` names both, and a third that plays beside them and never learns.
"""

from collections.abc import Callable, Iterator

from areal_sdk import Agent, EpisodeContext, Outcome, Task

LENGTH = 12


class TwoRoles(Agent):
    async def run(self, task: Task, context: EpisodeContext) -> Outcome:
        asked = [{"role": "user", "content": task.data["wish"]}]
        plan = await context.generate(asked, max_new_tokens=LENGTH, policy="planner")
        told = [{"role": "user", "content": f"{task.data['wish']}: {plan.text}"}]
        code = await context.generate(told, max_new_tokens=LENGTH, policy="coder")
        rewards = {
            "planner": _share(plan.text, str.isalpha),
            "coder": _share(code.text, str.isdigit),
        }
        return Outcome.scored(sum(rewards.values()) / 2, by_policy=rewards)


def _share(text: str, is_right: Callable[[str], bool]) -> float:
    """The share of an answer's places that hold a right ASCII character."""
    return sum(c.isascii() and is_right(c) for c in text) / max(len(text), LENGTH)


def tasks(split: str) -> Iterator[Task]:
    for number in range(16 if split == "eval" else 64):
        yield Task(f"{split}-{number}", {"wish": f"{split} {number}"})
