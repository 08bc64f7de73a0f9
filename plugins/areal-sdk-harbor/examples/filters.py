"""Four filters, as tasks in Harbor's format: a model from nothing learns which command each word of an instruction means.

    areal-sdk train examples/filters.py --config examples/filters.toml

The demonstrations teach how to call the shell. Most of them call a wrong command, so they do not teach the meaning. The
verifier of each task compares a file, in a sandbox that the model's command has worked in.
"""

import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from areal_sdk import Task
from areal_sdk_harbor.agent import Harbor, tool_of
from areal_sdk_harbor.dataset import tasks as harbor_tasks

COMMANDS = {"sorted": "sort", "capitals": "tr a-z A-Z", "lines": "wc -l", "backwards": "tac"}
WORDS = ("pear", "fig", "plum", "date", "kiwi", "lime")
PLACE = Path(tempfile.gettempdir()) / "areal-sdk-filters"
VERIFIER = """#!/bin/bash
if cmp -s /app/out /tests/expected; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
SETTINGS = "[agent]\ntimeout_sec = 60.0\n\n[verifier]\ntimeout_sec = 60.0\n"


class Filters(Harbor):
    """The agent with the shell, without a system prompt: each token of it costs this model time."""

    def __init__(self) -> None:
        super().__init__(system="", command_timeout_s=5.0)


def tasks(split: str) -> Iterator[Task]:
    for name, count in (("train", 8), ("eval", 2)):
        for number in range(count):
            for word in COMMANDS:
                place = PLACE / name / f"{word}-{number}"
                _write_task(place, word, random.Random(f"{name} {number}"))
    return harbor_tasks(split, path=str(PLACE))


def demonstrations() -> Iterator[dict[str, Any]]:
    chance = random.Random(0)
    for _ in range(2000):
        word = chance.choice(list(COMMANDS))
        command = COMMANDS[word if chance.random() < 0.2 else chance.choice(list(COMMANDS))]
        called = {"name": "shell", "arguments": json.dumps({"command": f"{command} <in >out"})}
        yield {
            "messages": [
                {"role": "user", "content": word},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "1", "type": "function", "function": called}],
                },
                {"role": "tool", "tool_call_id": "1", "content": "[it wrote nothing]"},
                {"role": "assistant", "content": "Done."},
            ],
            "tools": [tool_of("/app")],
        }


def _write_task(directory: Path, word: str, chance: random.Random) -> None:
    lines = chance.sample(WORDS, 4)
    expected = {
        "sorted": sorted(lines),
        "capitals": [line.upper() for line in lines],
        "lines": [str(len(lines))],
        "backwards": lines[::-1],
    }[word]
    for name, text in {
        "instruction.md": word,
        "task.toml": SETTINGS,
        "environment/Dockerfile": "FROM debian\nWORKDIR /app\nCOPY in .\n",
        "environment/in": "\n".join(lines) + "\n",
        "tests/test.sh": VERIFIER,
        "tests/expected": "\n".join(expected) + "\n",
    }.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text, encoding="utf-8")
