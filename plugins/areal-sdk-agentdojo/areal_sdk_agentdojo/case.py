"""`Case`: a task of AgentDojo's user, in an environment that an attacker may have written into."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from agentdojo.base_tasks import BaseInjectionTask, BaseUserTask
from agentdojo.functions_runtime import TaskEnvironment
from agentdojo.task_suite.load_suites import get_suites
from agentdojo.task_suite.task_suite import TaskSuite

from areal_sdk import ConfigError, Task

LATEST = "v1.2.2"
"""The version of the benchmark that agentdojo 0.1.35 runs by default."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case of the benchmark."""

    suite: TaskSuite[Any]
    user_task: BaseUserTask[Any]
    injection_task: BaseInjectionTask[Any] | None = None
    """The attacker's goal; None where nobody attacks."""
    injections: Mapping[str, str] = field(default_factory=dict)
    """The attacker's texts, by AgentDojo's name of the place where each stands."""

    @classmethod
    def of(cls, task: Task) -> "Case":
        """The case that the data of a task names."""
        data = task.data
        if missing := {"suite", "user_task"} - set(data):
            raise ValueError(
                f"task {task.id!r} has no data[{min(missing)!r}]: the environment and the reward "
                "agentdojo work on tasks of the dataset agentdojo"
            )
        suite = suite_named(str(data["suite"]), version=str(data.get("version", LATEST)))
        goal, texts = data.get("injection_task"), dict(data.get("injections") or {})
        if (goal is None) != (not texts):
            raise ValueError(
                f"task {task.id!r}: data['injection_task'] and data['injections'] go together: "
                "the attacker's goal, and the texts that pursue it"
            )
        return cls(
            suite,
            _known(suite.user_tasks, str(data["user_task"]), suite),
            None if goal is None else _known(suite.injection_tasks, str(goal), suite),
            texts,
        )

    def loaded(self, injections: Mapping[str, str] | None = None) -> TaskEnvironment:
        """The suite's environment with the case's injections or with others, as it is before the user's task."""
        texts = self.injections if injections is None else injections
        return _loaded(self.suite, tuple(sorted(texts.items()))).model_copy(deep=True)

    def environment(self, injections: Mapping[str, str] | None = None) -> TaskEnvironment:
        """The environment in which the user's task begins."""
        begun: TaskEnvironment = self.user_task.init_environment(self.loaded(injections))
        return begun


@lru_cache(maxsize=64)  # a suite takes 10 to 100 ms, and the attempts at a task share it
def _loaded(suite: TaskSuite[Any], injections: tuple[tuple[str, str], ...]) -> TaskEnvironment:
    loaded: TaskEnvironment = suite.load_and_inject_default_environment(dict(injections))
    return loaded


def suite_named(name: str, *, version: str = LATEST) -> TaskSuite[Any]:
    """A suite of a version; ConfigError if AgentDojo does not have it."""
    known = get_suites(version)
    if not known:
        raise ConfigError(f"version = {version!r}: AgentDojo has none such; take {LATEST!r}")
    if name not in known:
        raise ConfigError(f"AgentDojo {version} has no suite {name!r}; it has {', '.join(known)}")
    return known[name]


def _known(tasks: Mapping[str, Any], name: str, suite: TaskSuite[Any]) -> Any:
    if name not in tasks:
        raise ConfigError(f"AgentDojo's suite {suite.name} has no {name!r}: {', '.join(tasks)}")
    return tasks[name]
