"""Source text of a small plugin."""

HEAD = """
import asyncio, itertools, random
from areal_sdk import Environment, StepResult, Task, hookimpl

COUNT = itertools.count()

def tasks(split):
    for n in range(5):
        yield Task(f"{split}-{n}", {"question": f"{split} {n}+2?", "answer": str(n + 902)})

class World(Environment):
    async def reset(self, task):
        self.left = 2
        return [{"role": "user", "content": task.data["question"]}]
    async def step(self, message):
        self.left -= 1
        calls = message.get("tool_calls") or ()
        answers = [{"role": "tool", "tool_call_id": c["id"], "content": "?"} for c in calls]
        done = self.left == 0
        return StepResult([*answers, {"role": "user", "content": "no"}], reward=0.5 if done else None, done=done)

async def agent(task, context):
    turn = await context.generate([{"role": "user", "content": task.data["question"]}])
    return float(turn.text == task.data["answer"])

def reward(episode, *, word: str = "7"):
    return float(word in episode.final_text)

"""
HOOKS = """
@hookimpl
def register_rewards(register): register("reward", reward)
@hookimpl
def register_datasets(register): register("tasks", tasks)
@hookimpl
def register_environments(register): register("world", World)
@hookimpl
def register_agents(register): register("agent", agent)
"""
