"""The checks of `check_plugin`, one for each kind of item that a plugin brings."""

import inspect
import json
import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from areal_sdk.environment import Environment
from areal_sdk.errors import ConfigError
from areal_sdk.options import list_options
from areal_sdk.plugins import Plugins, validate_options
from areal_sdk.process.user_code import reference_to
from areal_sdk.testing.conformance import ConformanceError, in_time, require
from areal_sdk.testing.environments import check_environment
from areal_sdk.testing.messages import make_episode
from areal_sdk.testing.rewards import check_reward
from areal_sdk.testing.workflows import check_survival
from areal_sdk.types import Task

MAX_TASKS = 200
"""Maximum number of tasks of a dataset that are read."""
NUM_PLAYED = 3
"""Number of tasks that an environment plays."""
MIN_LEAKS = 3
"""Fewest tasks after which leaked answers are an error: a single answer may stand in a question by chance."""

INVENTED = Task(
    "invented",
    {
        "question": "What is 2+2?",
        "prompt": "What is 2+2?",
        "messages": [{"role": "user", "content": "What is 2+2?"}],
        "answer": "4",
    },
)

Options = Mapping[str, Mapping[str, Any]]


async def check_item(
    plugins: Plugins, kind: str, name: str, options: Options, tasks: str | None = None
) -> None:
    """Check an item; ConformanceError names the first problem."""
    check = _Check(plugins, name, options, tasks)
    if kind == "reward":
        await check.reward()
    elif kind == "environment":
        await check.environment()
    elif kind == "agent":
        await check.agent()
    elif kind == "dataset":
        check.dataset()
    else:
        registry = getattr(plugins, f"{kind}s")
        item = registry.get(name)
        if kind != "command" and callable(item):
            list_options(item)


class _Check:
    """The checks of one item: with its options, on tasks."""

    def __init__(self, plugins: Plugins, name: str, options: Options, tasks: str | None) -> None:
        self._plugins = plugins
        self._name = name
        self._options = options
        self._tasks = tasks

    async def reward(self) -> None:
        item = self._plugins.rewards.get(self._name)
        table = f"reward.{self._name}"
        options = self._options_of(item, table, skip=1)
        tasks, invented = self._some_tasks()
        episodes = [
            make_episode(text, data=task.data)
            for task in tasks
            for text in (str(task.data.get("answer", "yes")), "I do not know.")
        ]
        try:
            await check_reward(item, episodes, options=options)
        except ConformanceError as exc:
            raise ConformanceError(f"{exc}{invented}") from None

    async def environment(self) -> None:
        table = f"env.{self._name}"
        cls = self._plugins.environments.get(self._name)
        make = self._plugins.configure("env", self._name, self._options_of(cls, table))
        _check_travels(cls)
        tasks, invented = self._some_tasks()
        try:
            for task in tasks:
                await check_environment(_named(make, cls), task)
        except ConformanceError as exc:
            raise ConformanceError(f"{exc}{invented}") from None
        await _check_leaks(make, self._some_tasks(10)[0])

    async def agent(self) -> None:
        item: Any = self._plugins.agents.get(self._name)
        _check_travels(item)
        if inspect.isclass(item):
            self._options_of(item, "agent")
        agent = self._plugins.configure("agent", self._name, self._options.get("agent", {}))
        (task, *_), invented = self._some_tasks()
        try:
            await check_survival(agent, task)
        except ConformanceError as exc:
            raise ConformanceError(f"{exc}{invented}") from None

    def dataset(self) -> None:
        item = self._plugins.datasets.get(self._name)
        table = f"tasks.{self._name}"
        options = self._options_of(item, table, skip=1)
        train = _read(item, "train", options)
        require(bool(train), "it has no task in the split 'train'")
        again = _read(item, "train", options)
        require(
            train == again,
            "it gives other tasks when it is asked again: seed its randomness with the split and an "
            "option, or a resume would train other tasks",
        )
        held_out = {_content(task) for task in _read(item, "eval", options)}
        shared = [task.id for task in train if _content(task) in held_out]
        require(
            not shared,
            f"its task {shared[:1]} is in both splits, 'train' and 'eval': an evaluation could not tell "
            "learning from remembering",
        )

    def _options_of(self, item: Callable[..., Any], table: str, *, skip: int = 0) -> dict[str, Any]:
        """The options that were given, checked; ConformanceError for a wrong one, or if a required one is missing."""
        given = self._options.get(table, {})
        missing = [
            o for o in list_options(item, skip=skip) if o.is_required and o.name not in given
        ]
        try:
            return validate_options(item, given, table=table, skip=skip)
        except ConfigError as exc:
            cure = f"; to check it, give --set {table}.{missing[0].name}=VALUE" if missing else ""
            raise ConformanceError(f"{exc}{cure}") from None

    def _some_tasks(self, most: int = NUM_PLAYED) -> tuple[Sequence[Task], str]:
        """Tasks to try the item on, and a hint for error messages if the tasks are invented, else an empty one."""
        if self._tasks is not None:
            lines = Path(self._tasks).read_text(encoding="utf-8").splitlines()[:most]
            rows = [json.loads(line) for line in lines]
            return [Task(f"task-{n}", row.get("data", row)) for n, row in enumerate(rows)], ""
        names = self._plugins.datasets.names()
        name = self._name if self._name in names else next(iter(names), None)
        if name is None:
            keys = ", ".join(INVENTED.data)
            return [
                INVENTED
            ], f" (tried on an invented task with {keys}: give real ones, --tasks FILE)"
        dataset = self._plugins.datasets.get(name)
        options = validate_options(
            dataset, self._options.get(f"tasks.{name}", {}), table=f"tasks.{name}", skip=1
        )
        found = [t for t in islice(dataset("train", **options), most) if isinstance(t, Task)]
        return found or [INVENTED], ""


def _read(dataset: Callable[..., Any], split: str, options: Mapping[str, Any]) -> list[Task]:
    tasks: dict[str, Task] = {}
    try:
        for task in islice(dataset(split, **options), MAX_TASKS):
            require(
                isinstance(task, Task),
                f"it yields {type(task).__name__}: yield areal_sdk.Task(...)",
            )
            require(task.id not in tasks, f"two tasks have the id {task.id!r}: ids key resumes")
            _check_plain(task)
            tasks[task.id] = task
    except ConformanceError:
        raise
    except Exception as exc:
        raise ConformanceError(
            f"it raised {type(exc).__name__} for the split {split!r}: {exc}; yield nothing for a split "
            "that it does not have"
        ) from exc
    return list(tasks.values())


def _check_plain(task: Task) -> None:
    try:
        same = pickle.loads(pickle.dumps(task)) == task
        json.dumps(dict(task.data))
    except Exception as exc:
        raise ConformanceError(
            f"task {task.id!r} cannot be sent to another process or stored ({exc}): keep to plain values "
            "in Task.data"
        ) from exc
    require(
        same, f"task {task.id!r} is another one after a pickle: keep to plain values in Task.data"
    )


def _check_travels(item: object) -> None:
    if inspect.isclass(item) or inspect.isfunction(item):
        try:
            reference_to(item)
        except ConfigError as exc:
            raise ConformanceError(f"no worker process could load it: {exc}") from None


def _named(make: Callable[[], Environment], cls: type) -> Callable[[], Environment]:
    """A function that does what `make` does, and has the name of the class, which errors quote."""

    def made() -> Environment:
        return make()

    made.__name__ = cls.__name__
    return made


async def _check_leaks(make: Callable[[], Environment], tasks: Sequence[Task]) -> None:
    """Check that the opening messages and the tools do not show the answers of all tasks. A task is left out if its other
    data show the answer, as choices do."""
    leaks = 0
    judged = 0
    for task in tasks:
        answer = task.data.get("answer")
        shown = " ".join(str(value) for key, value in task.data.items() if key != "answer")
        if not isinstance(answer, (str, int, float)) or _stands_in(str(answer), shown):
            continue
        judged += 1
        environment = make()
        opening = await in_time(environment.reset(task), timeout_s=10.0, what="reset()")
        seen = json.dumps([list(opening), list(environment.tools)], ensure_ascii=False)
        await environment.close()
        leaks += _stands_in(str(answer), seen)
    require(
        judged < MIN_LEAKS or leaks < judged,
        f"the answer stands in the opening messages or tools of all {judged} tasks: the model would "
        "learn to copy it; show task.data without its answer",
    )


def _stands_in(answer: str, text: str) -> bool:
    """Whether the text has the answer as whole words.

    >>> _stands_in("4", "14 apples"), _stands_in("4", "2+2=4")
    (False, True)
    """
    return bool(answer) and re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", text) is not None


def _content(task: Task) -> str:
    return json.dumps(dict(task.data), sort_keys=True)
