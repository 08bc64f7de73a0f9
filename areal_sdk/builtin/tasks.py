"""Tasks from the rows of a file: ids, fields under other names, errors with the row."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from areal_sdk.builtin.hub import is_hub_id, read_hub
from areal_sdk.builtin.rows import Row, read_rows
from areal_sdk.errors import ConfigError
from areal_sdk.types import Task


def read_tasks(
    source: Path | str, *, split: str = "train", fields: Mapping[str, str] | None = None
) -> Iterator[Task]:
    """The tasks of a path, or of the id of a dataset on the hub, read as they are needed.

    A row is `{"id": ..., "data": {...}}`, or any object: its fields are then the task's data. `fields` names
    fields of the file by fields of the task, such as `{"question": "problem"}`. A task without an id is named by the
    number of its row, so a file without ids must not be reordered between a run and its resume.
    """
    if isinstance(source, str) and is_hub_id(source):
        name = re.sub(r".*/|[:@].*", "", source)
        for row in read_hub(source, split=split):  # ids are compared where blocks of tasks are read
            yield _task(row, fields or {}, default_id=f"{name}-{row.number}")
        return
    path, seen = Path(source), dict[str, str]()
    for row in read_rows(path, split=split):
        task = _task(row, fields or {}, default_id=f"{path.stem}-{row.number}")
        if (first := seen.setdefault(task.id, row.where)) is not row.where:
            raise ConfigError(
                f"{row.where}: the id {task.id!r} was used {_before(first, path)}; ids key groups and "
                "resumes, so each task needs its own: give it one, or leave the ids out"
            )
        yield task
    if not seen:
        raise ConfigError(
            f"{path} holds no tasks: it needs one JSON object a line, or one row a task"
        )


def _before(where: str, path: Path) -> str:
    place = where.removeprefix(f"{path}, ")
    return f"{'on' if place.startswith('line') else 'in'} {place}"


def _task(row: Row, fields: Mapping[str, str], *, default_id: str) -> Task:
    values = {key: value for key, value in row.values.items() if (key, value) != ("data", None)}
    data = values.get("data")
    if isinstance(data, dict):
        if others := sorted(values.keys() - {"id", "data"}):
            raise ConfigError(
                f"{row.where}: {', '.join(others)} beside data: put all fields into data, or none"
            )
        named = _renamed(data, fields, row)
        outer = values.get("id", default_id)
        return Task(_identity(named.pop("id") if "id" in fields else outer, row), named)
    if data is not None and len(values.keys() - {"id"}) == 1:
        raise ConfigError(f"{row.where}: data is an object, not {type(data).__name__}")
    named = _renamed(values, fields, row)
    return Task(_identity(named.pop("id", default_id), row), named)


def _renamed(values: Mapping[str, Any], fields: Mapping[str, str], row: Row) -> dict[str, Any]:
    """`values` under the names that the task has for the fields of the file."""
    named = {name: value for name, value in values.items() if name not in fields.values()}
    for name, given in fields.items():
        if given not in values:
            known = ", ".join(map(str, values)) or "nothing"
            raise ConfigError(f"{row.where}: no {given!r} (fields.{name}); the row has: {known}")
        named[name] = values[given]
    return named


def _identity(identity: object, row: Row) -> str:
    is_name = isinstance(identity, (str, int)) and not isinstance(identity, bool)
    if not is_name or identity == "":
        raise ConfigError(f"{row.where}: id = {identity!r}: an id is a string or a whole number")
    return str(identity)
