"""The objects that a call from Python gave: an agent, an environment's class, tasks, rewards.

Settings name such things; an object takes the place of its name. A run remembers which arguments were
objects, because only Python can give them again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from areal_sdk.errors import ConfigError
from areal_sdk.reward import RewardFn
from areal_sdk.types import Task

TasksLike = Iterable[Task] | Iterable[Mapping[str, Any]] | str | Path
"""Tasks, their data (rows of a `datasets.Dataset`, for example), or a file or a dataset's name."""

_ARGUMENTS = {"train": "tasks", "eval": "eval_tasks"}
"""The argument that gives the tasks of a split."""


@dataclass(frozen=True, slots=True)
class Given:
    """The objects that a call from Python gave, and the settings without them."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    agent: object | None = None
    tasks: Mapping[str, Iterable[Task]] = field(default_factory=dict)
    """Tasks by split."""
    rewards: Mapping[str, RewardFn] = field(default_factory=dict)
    """Reward functions by name; `settings` have the weights."""

    @property
    def is_read_once(self) -> bool:
        """Whether some tasks come from an iterator, which cannot be read again: a second plan would give later tasks
        the ids of the first ones."""
        return any(
            isinstance(tasks, _Tasks) and isinstance(tasks.items, Iterator)
            for tasks in self.tasks.values()
        )

    @property
    def call(self) -> dict[str, str]:
        """The name of the agent, and the arguments that were objects; empty if there were none."""
        named = self.settings.get(
            "agent"
        )  # an environment's name and a command are in the settings
        name = _name(self.agent) if self.agent is not None else repr(named)
        objects = {_ARGUMENTS.get(split, "tasks"): "..." for split in self.tasks}
        if self.rewards:
            objects["rewards"] = "..."
        return {"agent": name, **objects} if objects or self.agent is not None else {}


def read_call(
    agent: object, settings: Mapping[str, Any], tasks: Mapping[str, object] | None = None
) -> Given:
    """The objects and settings of a call. `tasks` has tasks, dicts, a name as in the settings, or None by split."""
    values = dict(settings)
    item = None if agent is None or isinstance(agent, str) else agent
    if isinstance(agent, str):
        values["agent"] = agent
    for key in ("env", "command"):
        if agent is not None and (other := values.get(key)) is not None:
            told = repr(other) if isinstance(other, (str, Mapping)) else _name(other)
            raise ConfigError(f"an agent and {key}={told} both: give one of them")
    if values.get("env") is not None and not isinstance(values["env"], (str, Mapping)):
        item = values.pop("env")
    given: dict[str, Iterable[Task]] = {}
    for split, items in (tasks or {}).items():
        if isinstance(items, (str, Path)):
            values[_ARGUMENTS.get(split, "eval_tasks")] = str(items)
        elif items is not None:
            given[split] = _as_tasks(cast(Iterable[object], items), split)
    weights, functions = _rewards(values.pop("rewards", {}))
    if weights:
        values["rewards"] = weights
    return Given(values, item, given, functions)


def _rewards(given: Any) -> tuple[dict[str, float], dict[str, RewardFn]]:
    """Weights and functions by name, from any form: a function, a name, a list of these, a mapping of these to
    weights, or a mapping of names to functions."""
    if isinstance(given, str) or callable(given):
        given = [given]
    pairs = list(given.items()) if isinstance(given, Mapping) else [(one, 1.0) for one in given]
    weights: dict[str, float] = {}
    functions: dict[str, RewardFn] = {}
    for reward, value in pairs:
        function = reward if callable(reward) else value if callable(value) else None
        name = reward if isinstance(reward, str) else _name(reward)
        if name == "<lambda>":
            raise ConfigError(
                "rewards: no other process could load a lambda: define a function at the top level of a .py "
                "file"
            )
        if name in weights:
            raise ConfigError(f"rewards: two are called {name!r}: rename one of the functions")
        if function is not None:
            functions[name] = function
        weights[name] = 1.0 if callable(value) else value
    return weights, functions


def _as_tasks(items: Iterable[object], split: str) -> Iterable[Task]:
    """The tasks: a list if their number is known, else an iterable that reads them as they are needed."""
    tasks = _Tasks(items, split)
    return list(tasks) if isinstance(items, (Sequence, Sized)) else tasks


@dataclass(frozen=True, slots=True)
class _Tasks:
    """Tasks, or mappings with the data of a task: rows of a `datasets.Dataset`, for example."""

    items: Iterable[object]
    split: str

    def __iter__(self) -> Iterator[Task]:
        for number, item in enumerate(self.items):
            if isinstance(item, Mapping):
                data = dict(item)
                identity = data.pop("id", f"{self.split}-{number}")
                yield Task(str(identity), data)
            else:
                yield cast(Task, item)  # whoever reads tasks says what is wrong with other things


def _name(item: object) -> str:
    return getattr(item, "__name__", None) or type(item).__name__
