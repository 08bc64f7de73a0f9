"""Tasks: users' requests of AgentDojo's suites, alone or under attack."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from agentdojo.task_suite.task_suite import TaskSuite

from areal_sdk import ConfigError, Task
from areal_sdk_agentdojo.attacks import GOAL, NONE, attack_on
from areal_sdk_agentdojo.case import LATEST, suite_named

SUITES = ("banking", "slack", "travel", "workspace")

Held = Literal["user_tasks", "injections", "both"]


def tasks(
    split: str,
    *,
    suites: str | list[str] = "all",
    attacks: str | list[str] = NONE,
    eval_attacks: str | list[str] | None = None,
    user_tasks: list[str] | None = None,
    injection_tasks: list[str] | None = None,
    hold_out: Held = "user_tasks",
    held_out: float = 0.25,
    version: str = LATEST,
) -> Iterator[Task]:
    """Each user's task once without an attack ("none"), and for each attack once with every goal of the attacker.

    suites: banking, slack, travel, workspace, several of them, or "all".
    attacks: "none", AgentDojo's attacks by name, or templates with `{goal}` in them.
    eval_attacks: the same for evaluations; by default those of training.
    user_tasks, injection_tasks: only these, such as "banking/user_task_3" and "banking/injection_task_7".
    hold_out: what evaluations have for themselves. With "both", a pair of which only one is held out is in no
        split.
    held_out: the share of each suite that is held out; with 1.0, all tasks are for evaluations.
    """
    if not 0.0 <= held_out <= 1.0:
        raise ConfigError(f"held_out = {held_out}: give a share from 0.0 to 1.0, such as 0.25")
    is_train = split == "train"
    chosen = attacks if is_train or eval_attacks is None else eval_attacks
    names = SUITES if suites == "all" else _list(suites)
    _refuse_unknown(names, version, user_tasks, injection_tasks)
    for name in names:
        suite = suite_named(name, version=version)
        users = _parted(
            name, suite.user_tasks, held_out if hold_out != "injections" else None, is_train
        )
        goals = _parted(
            name, suite.injection_tasks, held_out if hold_out != "user_tasks" else None, is_train
        )
        for attack in _list(chosen):
            yield from _of_suite(
                suite,
                attack,
                version=version,
                users=[one for one in users if _is_among(user_tasks, name, one)],
                goals=[one for one in goals if _is_among(injection_tasks, name, one)],
            )


def _of_suite(
    suite: TaskSuite[Any], attack: str, *, version: str, users: Sequence[str], goals: Sequence[str]
) -> Iterator[Task]:
    write = None if attack == NONE else attack_on(suite, attack)
    for user in users:
        data = {
            "suite": suite.name,
            "family": suite.name,
            "version": version,
            "user_task": user,
            "attack": attack,
        }
        if write is None:
            yield Task(f"{suite.name}/{user}", data)
            continue
        for goal in goals:
            texts = write(suite.user_tasks[user], suite.injection_tasks[goal])
            place = f"{suite.name}/{user}/{goal}/{_label(attack)}"
            yield Task(place, {**data, "injection_task": goal, "injections": texts})


def _parted(suite: str, ids: Sequence[str], held_out: float | None, is_train: bool) -> list[str]:
    """The ids of one side of the split, in the suite's order; all of them if nothing of this kind is held out."""
    if held_out is None:
        return list(ids)
    shuffled = sorted(ids, key=lambda one: hashlib.sha256(f"{suite}/{one}".encode()).digest())
    held = set(shuffled[: round(held_out * len(shuffled))])
    return [one for one in ids if (one in held) != is_train]


def _label(attack: str) -> str:
    """The name of an attack in the ids of tasks."""
    if GOAL not in attack:
        return attack
    return f"template-{hashlib.sha256(attack.encode()).hexdigest()[:8]}"


def _refuse_unknown(suites: Sequence[str], version: str, *chosen: list[str] | None) -> None:
    """Raise ConfigError for a suite or a task that AgentDojo does not have: it would silently be left out."""
    known: set[str] = set()
    for name in suites:
        suite = suite_named(name, version=version)
        known |= {f"{name}/{one}" for one in (*suite.user_tasks, *suite.injection_tasks)}
    for one in (one for names in chosen for one in names or ()):
        if one not in known:
            raise ConfigError(
                f"{one!r} is no task of {', '.join(suites)}; name it as in {min(known)!r}"
            )


def _is_among(chosen: list[str] | None, suite: str, name: str) -> bool:
    return chosen is None or f"{suite}/{name}" in chosen


def _list(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else names
