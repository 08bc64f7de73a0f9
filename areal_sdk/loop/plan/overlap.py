"""Held-out tasks that are training tasks too: an evaluation of these cannot tell learning from remembering."""

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

from areal_sdk.builtin.hub import is_hub_id
from areal_sdk.config import Config
from areal_sdk.errors import ArealError
from areal_sdk.loop.plan.program import TRAIN, Program
from areal_sdk.loop.plan.rows import read_conversations
from areal_sdk.loop.plan.tasks import HeldOut, load_tasks
from areal_sdk.plugins import Plugins
from areal_sdk.rollout.tasks import TaskStream
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.episode_index import task_key
from areal_sdk.types import Task

_NAMES = ("id", "tool_call_id", "weight")
MAX_COMPARED = 100_000
"""Maximum number of training tasks that held-out tasks are compared with. More would take seconds."""


def warn_of_overlap(
    train: Sequence[Task] | TaskStream, held_out: Mapping[str, HeldOut]
) -> tuple[str, ...]:
    """A warning for each split that measures tasks which are trained on."""
    known = train.first if isinstance(train, TaskStream) else train
    warnings = []
    for split, given in held_out.items():
        if shared := _shared(given, known):
            warnings.append(
                f"{split}: {shared} held-out tasks are training tasks too, so "
                "the evaluation cannot tell learning from remembering: let tasks(split) give other "
                f"tasks for {split!r}, or give other held-out tasks (--eval-tasks FILE.jsonl)"
            )
    return tuple(warnings)


def trained_on(
    config: Config, held_out: HeldOut, split: str, *, program: Program, plugins: Plugins
) -> str:
    """A warning if the model is a run that trained on the measured tasks; else empty."""
    run = run_of(config.model)
    if run is None:
        return ""
    try:
        known = _known_to(run, config, program=program, plugins=plugins)
    except ArealError:
        return ""  # the run's tasks are gone, or its agent was another: nothing can be said
    shared = _shared(held_out, known)
    if not shared:
        return ""
    return (
        f"{split}: {run.path} was trained on {shared} tasks that are measured, so this cannot "
        "tell learning from remembering: give held-out tasks (--tasks FILE.jsonl)"
    )


def run_of(model: str) -> RunDir | None:
    """The run whose weights `model` names: the run itself, or a directory in its checkpoints."""
    path = Path(model).expanduser()
    found = [p for p in (path, *path.parents[:2]) if (p / "config.toml").is_file()]
    return RunDir(found[0]) if found else None


def _known_to(run: RunDir, config: Config, *, program: Program, plugins: Plugins) -> Sequence[Task]:
    """The training tasks of `run`; none if they are on the hub, or were given from Python."""
    trained = run.read_config()
    tasks, is_mixture = trained.get("tasks"), bool(trained.get("mixture"))
    is_lost = (
        "tasks" in run.read_call() or TRAIN in program.given or is_mixture != bool(config.mixture)
    )
    if is_lost or is_hub_id(tasks or "") or not run.read_steps():
        return ()
    if (learnt := trained.get("finetune", {})).get("objective") == "sft":
        files = [path for place in learnt["data"] if not (path := Path(place)).is_dir()]
        rows = [row for path in files for row in read_conversations(path)]
        return [Task(row.where, {"messages": list(row.messages)}) for row in rows]
    if learnt.get("objective") or trained.get("serve", {}).get("learn"):
        return ()  # it learnt from pairs, or from callers
    fields = trained.get("fields", {})
    asked = config.model_copy(update={"tasks": tasks, "fields": {} if is_mixture else fields})
    train = load_tasks(asked, program=program, plugins=plugins, say=lambda line: None)
    return train.first if isinstance(train, TaskStream) else train


def _shared(held_out: HeldOut, known: Sequence[Task]) -> str:
    """The share of held-out tasks that are training tasks, in words (`3 of 20`); empty if none are."""
    num_shared, num_tasks = _num_shared(held_out.tasks, known), len(held_out.tasks)
    if not num_shared:
        return ""
    share = "all" if num_shared == num_tasks else f"{num_shared} of"
    measured = " measured" if num_tasks < held_out.num_available else ""
    return f"{share} {num_tasks}{measured}"


def _num_shared(held_out: Sequence[Task], train: Sequence[Task]) -> int:
    """The number of held-out tasks that are among the training tasks, by what they ask.

    If this does not tell the tasks apart, their ids count as well.
    """
    by_data = len({_asked(task) for task in held_out}) == len(held_out) > 1

    def key(task: Task) -> str:
        return _asked(task) if by_data else f"{task.id} {task_key(task)}"

    wanted = {key(task) for task in held_out}
    return len(wanted & {key(task) for task in islice(train, MAX_COMPARED)})


def _asked(task: Task) -> str:
    """A digest of the question without the ids of tool calls, which each export of a conversation may make anew."""
    if "messages" not in task.data:
        return task_key(task)
    said = json.dumps(_unnamed(task.data["messages"]), sort_keys=True, default=str)
    return blake2b(said.encode(), digest_size=16).hexdigest()


def _unnamed(said: Any) -> Any:
    if isinstance(said, Mapping):
        return {k: _unnamed(v) for k, v in said.items() if k not in _NAMES and v not in (None, "")}
    return [_unnamed(one) for one in said] if isinstance(said, (list, tuple)) else said
