"""GSM8K: word problems of school mathematics, from files or from a hub."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from areal_sdk import ConfigError, Task
from areal_sdk_math.answers import final_answer

_SPLITS = {"eval": "test"}


def tasks(
    split: str, *, source: str = "openai/gsm8k", config: str = "main", limit: int | None = None
) -> Iterator[Task]:
    """The problems of `split`: `question`, `answer` (the number after `####`) and `solution`.

    `source` is a directory with `train.jsonl` and `test.jsonl`, or the id of a dataset on a hub. Of a
    split only the first `limit` are taken, if it is given.
    """
    name = _SPLITS.get(split, split)
    directory = Path(source).expanduser()
    rows = (
        _from_file(directory / f"{name}.jsonl")
        if directory.is_dir()
        else _from_hub(source, config, name)
    )
    for number, (where, row) in enumerate(rows):
        if number == limit:
            return
        yield _task(f"gsm8k-{name}-{number}", where, row)


def _task(identity: str, where: str, row: Mapping[str, Any]) -> Task:
    if missing := {"question", "answer"} - row.keys():
        raise ConfigError(f"{where}: no {' and no '.join(sorted(missing))}: is this GSM8K?")
    solution = str(row["answer"])
    if "####" not in solution:
        raise ConfigError(f"{where}: the answer has no ####, after which GSM8K writes the number")
    data = {
        "question": str(row["question"]),
        "answer": final_answer(solution),
        "solution": solution,
    }
    return Task(identity, data)


def _from_file(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not path.is_file():
        raise ConfigError(
            f"[tasks.gsm8k] source: there is no {path}: add it, or ask for no evaluation if it has the held-out "
            "problems (--set eval.before=false --set eval.after=false)"
        )
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            where = f"{path}, line {number}"
            try:
                row = json.loads(line)
            except ValueError as exc:
                raise ConfigError(f"{where}: not valid JSON: {exc}") from None
            if not isinstance(row, dict):
                raise ConfigError(f"{where}: not an object")
            yield where, row


def _from_hub(source: str, config: str, split: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        from datasets import load_dataset
    except ImportError:
        raise ConfigError(
            f"[tasks.gsm8k] source = {source!r} is no directory here, and a hub needs the package "
            'datasets: pip install "areal-sdk-math[hub]"'
        ) from None
    try:
        rows = load_dataset(source, config, split=split)
    except Exception as exc:
        raise ConfigError(
            f"[tasks.gsm8k] source = {source!r}: {type(exc).__name__}: {exc}: give a directory with "
            "train.jsonl and test.jsonl, or an id that the hub knows"
        ) from exc
    for number, row in enumerate(rows, start=1):
        yield f"{source}, {split} row {number}", row
