"""Tasks: those of a taskset of verifiers."""

import hashlib
import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from areal_sdk import ConfigError, Task
from areal_sdk_verifiers.player import environment_of_player, script_words
from areal_sdk_verifiers.python import python_with_verifiers

_LAST_WORDS = 800


def tasks(
    split: str,
    *,
    taskset: str = "",
    options: dict[str, Any] | None = None,
    eval_options: dict[str, Any] | None = None,
    env: dict[str, Any] | None = None,
    python: str = "",
    path: tuple[str, ...] = (),
    requirements: tuple[str, ...] = (),
    count: int = 1000,
    held_out: float = 0.2,
) -> Iterator[Task]:
    """The tasks of a taskset, in its order.

    taskset: its id: the name of its module.
    options: of the taskset's config. eval_options: for held-out tasks, in place of `options`.
    env: of the environment's config, as verifiers reads it: `{"id": "best_of_n"}`, `{"agent": {"harness": {"id": "null"}}}`.
    python: a Python that has verifiers and the taskset. Without one, a virtual environment is made.
    path: directories with modules of tasksets. requirements: packages for the virtual environment.
    count: how many tasks are read at most; a taskset may be without end.
    held_out: the share that is for evaluations if there are no eval_options, chosen by the content of each task.
    """
    if not taskset:
        raise ConfigError('[tasks.verifiers] taskset = "": name a taskset of verifiers')
    if not 0.0 <= held_out <= 1.0:
        raise ConfigError(f"held_out = {held_out}: give a share from 0.0 to 1.0, such as 0.2")
    is_train = split == "train"
    own = options if is_train or eval_options is None else eval_options
    config = {**(env or {}), "taskset": {**(own or {}), "id": taskset}}
    program = python_with_verifiers(python, requirements)
    places = [str(Path(one).expanduser().absolute()) for one in path]
    for told in _listed(program, places, config, count):
        key = str(told["key"])
        if eval_options is None and _is_held_out(key, held_out) == is_train:
            continue
        data = {
            "prompt": told["prompt"],
            "idx": told["idx"],
            "key": key,
            "env": config,
            "python": program,
            "path": places,
        }
        yield Task(f"{taskset}/{told['name'] or told['idx']}", data)


def _listed(
    program: str, places: Sequence[str], config: dict[str, Any], count: int
) -> list[dict[str, Any]]:
    ended = subprocess.run(
        script_words(program, "list"),
        input=json.dumps({"env": config, "count": count}) + "\n",
        capture_output=True,
        text=True,
        env=environment_of_player(places),
    )
    if ended.returncode:
        raise ConfigError(
            f"the tasks of {config['taskset']['id']} cannot be listed by {program}: "
            f"{ended.stderr.strip()[-_LAST_WORDS:]}"
        )
    return [json.loads(line) for line in ended.stdout.splitlines()]


def _is_held_out(key: str, held_out: float) -> bool:
    digest = hashlib.sha256(f"verifiers {key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < held_out * 2**64
