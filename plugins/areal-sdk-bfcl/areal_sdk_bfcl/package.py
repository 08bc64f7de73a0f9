"""The distribution `bfcl-eval`, without the packages that it pins.

It pins exact versions of numpy, filelock and 30 others, most of them for models behind APIs. What the multi-turn
category runs needs none of them but mpmath. So pip installs it with `--no-deps`, into a directory of this
virtual environment that only this package looks into.
"""

import fcntl
import functools
import logging
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from areal_sdk import ConfigError

VERSION = "2026.3.23"
"""The version whose 800 known solutions this package's tests play."""
_REQUIREMENT = f"bfcl-eval=={VERSION}"
_CURE = f"pip install --no-deps {_REQUIREMENT}"

logger = logging.getLogger(__name__)


@functools.cache
def make_importable() -> Path:
    """The directory of the module `bfcl_eval`, which can be imported from now on.

    One that is installed is used as it is. Otherwise pip fetches it once; if pip fails, the ConfigError quotes it.
    """
    if find_spec("bfcl_eval") is None:
        # At the end of the path: nothing in it may hide a module of this environment.
        sys.path.append(str(_fetched(Path(sys.prefix) / "share" / "areal-sdk-bfcl" / VERSION)))
    spec = find_spec("bfcl_eval")
    if spec is None or spec.origin is None:
        raise ConfigError(f"the installed bfcl_eval is no package with files: {_CURE}")
    return Path(spec.origin).parent


def _fetched(directory: Path) -> Path:
    """The directory with the distribution; workers that start together fetch it once."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with directory.with_name(f"{VERSION}.lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not directory.is_dir():
                _fetch(directory)
    except OSError as exc:
        raise ConfigError(f"bfcl-eval cannot be kept in {directory}: {exc}: {_CURE}") from exc
    return directory


def _fetch(directory: Path) -> None:
    logger.warning("fetching %s without its dependencies into %s", _REQUIREMENT, directory)
    unfinished = directory.with_name(f"{VERSION}.part")
    shutil.rmtree(unfinished, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    ended = subprocess.run([*pip, str(unfinished), _REQUIREMENT], capture_output=True, text=True)
    if ended.returncode:
        raise ConfigError(f"{_CURE}: pip could not fetch it: {ended.stderr.strip()[-500:]}")
    unfinished.rename(directory)
