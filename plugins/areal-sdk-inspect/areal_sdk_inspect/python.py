"""The Python that has Inspect: one that is named, this one, or a virtual environment that is made for it.

Inspect brings some ninety packages, and tasks bring theirs. They are never installed beside the trainer.
"""

import fcntl
import hashlib
import logging
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from areal_sdk import ConfigError

VERSION = "0.3.285"
"""The version that this package's tests play."""
logger = logging.getLogger(__name__)


def python_with_inspect(named: str, requirements: Sequence[str]) -> str:
    """The program. `requirements`: packages of tasks, for a virtual environment that is made here."""
    if named:
        found = shutil.which(Path(named).expanduser())
        if found is None:
            raise ConfigError(f"[tasks.inspect] python = {named!r}: there is no such program")
        return found
    if find_spec("inspect_ai") is not None and find_spec("openai") is not None:
        return sys.executable
    wanted = [f"inspect_ai=={VERSION}", "openai", *requirements]
    digest = hashlib.sha256("\n".join(wanted).encode()).hexdigest()[:8]
    directory = Path(sys.prefix) / "share" / "areal-sdk-inspect" / f"{VERSION}-{digest}"
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_suffix(".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # runs that start together make it once
        if not (directory / "made").exists():
            _make(directory, wanted)
    return str(directory / "bin" / "python")


def _make(directory: Path, wanted: Sequence[str]) -> None:
    logger.warning("making a virtual environment with %s in %s", ", ".join(wanted), directory)
    python = str(directory / "bin" / "python")
    steps = (
        [sys.executable, "-m", "venv", "--clear", str(directory)],
        [python, "-m", "pip", "install", "--quiet", *wanted],
    )
    for words in steps:
        ended = subprocess.run(words, capture_output=True, text=True)
        if ended.returncode:
            raise ConfigError(
                f"{' '.join(words)}: {ended.stderr.strip()[-500:]}: or name a Python that has Inspect "
                "([tasks.inspect] python)"
            )
    (directory / "made").touch()
