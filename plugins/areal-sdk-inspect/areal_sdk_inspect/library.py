"""Inspect, played by a process of its own Python, each episode in a fork."""

from pathlib import Path

from areal_sdk_shared import Library

VERSION = "0.3.285"
"""The version that this package's tests play."""

INSPECT = Library(
    "inspect",
    title="Inspect",
    script=Path(__file__).parent / "inside" / "play.py",
    modules=("inspect_ai", "openai"),
    requirements=(f"inspect_ai=={VERSION}", "openai"),
)
"""Inspect brings some ninety packages, and tasks bring theirs."""
