"""Virtual environments for code whose packages conflict with the packages of this process.

An environment is made once for each requirement, and kept in the user's cache. It holds the requirement,
its dependencies, and this version of areal-sdk. A file that has changed is another requirement.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

from areal_sdk.errors import ConfigError

DIRECTORY_VARIABLE = "AREAL_SDK_ENVIRONMENTS"
"""Environment variable that names a directory for environments, in place of the user's cache."""
_DONE = "areal-sdk-requirement.txt"
"""File that is written last: an environment without it was not finished."""
_MAX_SAID = 2000


def environment_for(requirement: str, *, say: Callable[[str], None] = lambda line: None) -> Path:
    """The Python of the environment for `requirement`, which is a requirement of pip or a directory with a
    distribution."""
    packages = [*_installable(requirement), *_installable(requirement_of("areal-sdk"))]
    directory = _root() / _name_of(requirement, packages)
    try:
        return make_environment(directory, packages, about=requirement, say=say)
    except ConfigError as exc:
        raise ConfigError(
            f"isolated = {requirement!r}: no environment could be made of it: {exc}"
        ) from None


def make_environment(
    directory: Path, packages: Sequence[str], *, about: str, say: Callable[[str], None]
) -> Path:
    """The Python of the virtual environment in `directory`. pip makes it once of `packages`, which takes a while.

    `about` names for `say` what the environment is for. If pip fails, nothing is left, and the ConfigError quotes pip.
    """
    with _alone(directory):
        if not (directory / _DONE).is_file():
            say(f"making an environment for {about} in {directory}")
            _make(directory, about, packages)
    return directory / "bin" / "python"


def _make(directory: Path, about: str, packages: Sequence[str]) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    try:
        pip_install(begin_environment(directory), "--quiet", *packages)
        (directory / _DONE).write_text(f"{about}\n", encoding="utf-8")
    except BaseException:  # Ctrl-C too
        shutil.rmtree(directory, ignore_errors=True)
        raise


def begin_environment(directory: Path, *options: str) -> Path:
    """The Python of a new virtual environment, which has no packages yet."""
    run_words([sys.executable, "-m", "venv", *options, str(directory)])
    return directory / "bin" / "python"


def pip_install(python: Path, *arguments: str) -> None:
    run_words([str(python), "-m", "pip", "install", *arguments])


def run_words(words: Sequence[str], *, env: Mapping[str, str] | None = None) -> str:
    """The output of a command; ConfigError with its last words if it fails."""
    variables = {**os.environ, **(env or {})}
    ended = subprocess.run(
        words, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=variables
    )
    if ended.returncode:
        said = (ended.stderr or ended.stdout).strip()[-_MAX_SAID:]
        raise ConfigError(f"{' '.join(words[:5])} failed: {said}")
    return ended.stdout


def _installable(requirement: str) -> list[str]:
    """The arguments of pip. A directory is installed in place, so that its changes count."""
    path = Path(requirement).expanduser()
    return ["--editable", str(path.resolve())] if path.is_dir() else [requirement]


def requirement_of(name: str) -> str:
    """The requirement with which pip installs the distribution `name` as it is installed here: its version, or the file or
    directory that it came from, if that is still there. ConfigError if it is not installed."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        raise ConfigError(
            f"{name} is no installed distribution, so no other environment can have it: pip install it"
        ) from None
    source = json.loads(found.read_text("direct_url.json") or "{}")
    path = Path(unquote(urlsplit(source.get("url", "")).path))
    return str(path) if source and path.exists() else f"{found.name}=={found.version}"


def _root() -> Path:
    if chosen := os.environ.get(DIRECTORY_VARIABLE):
        return Path(chosen).absolute()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "areal-sdk" / "environments"


def _name_of(requirement: str, packages: list[str]) -> str:
    """A readable name that differs for every Python, requirement, content of a required file, and areal-sdk."""
    words = "".join(c if c.isalnum() else "-" for c in Path(requirement).name)[:40]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    digest = hashlib.sha256(json.dumps([python, sys.base_prefix, *packages]).encode())
    for file in filter(Path.is_file, (Path(word).expanduser() for word in packages)):
        digest.update(file.read_bytes())
    return f"{words}-{digest.hexdigest()[:12]}"


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """A lock, so that two runs that start together make the environment once."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_name(f"{directory.name}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
