"""Deadline and places of tests that kill a process while it saves."""

from pathlib import Path

from areal_sdk.loop.learning.state import PREFIX

DEADLINE_S = 600.0


def place(directory: Path, step: int) -> Path:
    return directory / f"{PREFIX}{step:06d}"
