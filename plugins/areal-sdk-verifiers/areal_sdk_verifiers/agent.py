"""`Verifiers`: an agent that has verifiers play each task, with the episode's session as its endpoint."""

from areal_sdk import Agent, ConfigError, EpisodeContext, Outcome, Task
from areal_sdk_verifiers.library import VERIFIERS, with_harness

_NEEDED = frozenset({"idx", "key", "env", "python", "path"})


class Verifiers(Agent):
    """Plays the tasks of the dataset `verifiers`. The reward is the sum that the task's own functions give.

    The environment runs unchanged. A seat without a harness of its own has one that needs no program: a chat with the
    task's tools.
    """

    async def run(self, task: Task, context: EpisodeContext) -> Outcome | None:
        if not set(task.data) >= _NEEDED:
            known = ", ".join(sorted(task.data)) or "nothing"
            raise ConfigError(f"task {task.id!r} has {known}: play tasks of the dataset verifiers")
        order = {name: task.data[name] for name in ("idx", "key", "env")}
        path = with_harness(task.data["path"])
        return await VERIFIERS.play(order, context, python=str(task.data["python"]), path=path)
