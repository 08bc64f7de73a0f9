"""`Inspect`: an agent that has Inspect play each sample, with the episode's session as its model."""

from areal_sdk import Agent, ConfigError, EpisodeContext, Outcome, Task
from areal_sdk_inspect.library import INSPECT

_ORDER = ("spec", "index", "key", "score", "roles")
_NEEDED = frozenset({*_ORDER, "python"})


class Inspect(Agent):
    """Plays the tasks of the dataset `inspect`. The reward is the value of the score that counts.

    Solvers, tools and scorers run unchanged.
    """

    async def run(self, task: Task, context: EpisodeContext) -> Outcome | None:
        if not set(task.data) >= _NEEDED:
            known = ", ".join(sorted(task.data)) or "nothing"
            raise ConfigError(f"task {task.id!r} has {known}: play tasks of the dataset inspect")
        order = {name: task.data[name] for name in _ORDER}
        return await INSPECT.play(order, context, python=str(task.data["python"]))
