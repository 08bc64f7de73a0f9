"""Tasks from a JSONL file: one object a line, errors with the line's number."""

from collections.abc import Iterator
from pathlib import Path

from areal_sdk.errors import ConfigError
from areal_sdk.types import Task


def read_tasks(path: Path) -> Iterator[Task]:
    """The tasks of `path`, read as they are needed.

    A line is `{"id": ..., "data": {...}}`, or any object: its fields are then the task's data.
    Without an id a task is named by its line, so a file without ids must not be reordered between
    a run and its resume.
    """
    import orjson

    seen: dict[str, int] = {}
    for number, line in _lines(path):
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as exc:
            raise ConfigError(f"{path}, line {number}: not valid JSON: {exc}") from None
        if not isinstance(row, dict):
            raise ConfigError(
                f"{path}, line {number}: a task is a JSON object, not {type(row).__name__}"
            )
        task = _task(row, where=f"{path}, line {number}", default_id=f"{path.stem}-{number}")
        if (first := seen.setdefault(task.id, number)) != number:
            raise ConfigError(
                f"{path}, line {number}: the id {task.id!r} was used on line {first}; "
                "ids key groups and resumes, so each task needs its own"
            )
        yield task
    if not seen:
        raise ConfigError(f"{path} holds no tasks: it needs one JSON object a line")


def _task(row: dict[str, object], *, where: str, default_id: str) -> Task:
    identity = row.pop("id", default_id)
    if not isinstance(identity, (str, int)) or isinstance(identity, bool) or identity == "":
        raise ConfigError(f"{where}: id = {identity!r}: an id is a string or a whole number")
    data = row.pop("data", None)
    if data is None:
        return Task(str(identity), row)
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: data is an object, not {type(data).__name__}")
    if row:
        raise ConfigError(
            f"{where}: {', '.join(sorted(row))} beside data: put all fields into data, or none"
        )
    return Task(str(identity), data)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines that are not blank, a byte order mark removed."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if stripped := line.removeprefix(b"\xef\xbb\xbf").strip():
                    yield number, stripped
    except FileNotFoundError:
        raise ConfigError(f"no such file of tasks: {path}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a directory: give a JSONL file of tasks") from None
