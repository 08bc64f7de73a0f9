"""verifiers, played by a process of its own Python."""

from pathlib import Path

from areal_sdk_shared import Library

VERSION = "0.4.0"
"""The version that this package's tests play."""
INSIDE = Path(__file__).parent / "inside"

VERIFIERS = Library(
    "verifiers",
    title="verifiers",
    script=INSIDE / "play.py",
    modules=("verifiers",),
    requirements=(f"verifiers=={VERSION}",),
    most_episodes=2000,
)
"""verifiers needs 96 packages, among them versions of mcp and openai that others cannot have. It keeps a client for each
address, and each session has its own: hence a process does not play for ever."""


def with_harness(path: list[str]) -> list[str]:
    """Directories of tasksets, and that of the harness which needs no program."""
    return [str(INSIDE), *path]
