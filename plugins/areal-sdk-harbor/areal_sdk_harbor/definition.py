"""`Definition`: a task directory, read and found fit for a sandbox of this machine."""

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from areal_sdk_harbor.image import Copy, Image, RefusedError, read_image, why_it_fetches
from areal_sdk_harbor.tree import LeavesError, Tree, read_tree

JSON = Any
OWN = ("/logs", "/solution", "/tests")
"""Directories of Harbor in each container."""
AGENT_TIMEOUT_S, VERIFIER_TIMEOUT_S = 600.0, 600.0
_RESERVED = frozenset(
    {"bin", "dev", "etc", "lib", "lib32", "lib64", "proc", "sbin", "sys", "tmp", "usr"}
)
"""Directories at the root that a sandbox has from this machine, or of its own."""
_PATH = re.compile(r"(?:^|[\s`'\"(=:])/([a-z][a-z0-9_-]*)(?=[/\s`'\".,;)]|$)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Definition:
    """A task in Harbor's format."""

    name: str
    path: Path
    instruction: str
    image: Image
    tests: Tree
    solution: Tree | None
    agent_timeout_s: float
    verifier_timeout_s: float
    memory_mb: int | None
    env: Mapping[str, str]
    """Variables of every command: those of the image and of `environment.env`."""
    verifier_env: Mapping[str, str]
    solution_env: Mapping[str, str]
    writable: tuple[str, ...]
    """Directories at the root that commands may fill."""


def read_definition(path: Path) -> Definition:
    """The task in a directory. `RefusedError` with the reason if it cannot be played here."""
    try:
        settings = tomllib.loads((path / "task.toml").read_text(encoding="utf-8"))
        instruction = (path / "instruction.md").read_text(encoding="utf-8")
    except (OSError, ValueError) as exc:
        raise RefusedError(f"it cannot be read: {exc}") from None
    environment, agent = _table(settings, "environment"), _table(settings, "agent")
    verifier = _table(settings, "verifier")
    _check_needs(settings, environment, agent, verifier)
    image = read_image(
        path / "environment",
        docker_image=_word(environment, "docker_image"),
        workdir=_word(environment, "workdir"),
    )
    script = path / "tests" / "test.sh"
    if not script.is_file():
        raise RefusedError("it has no tests/test.sh")
    if why := why_it_fetches(_text(script)):
        raise RefusedError(f"tests/test.sh fetches packages ({why}), and a sandbox has no network")
    texts = [instruction, *_texts(path / "tests"), _text(path / "environment" / "Dockerfile")]
    return Definition(
        name=str(_table(settings, "task").get("name") or path.name),
        path=path,
        instruction=instruction,
        image=image,
        tests=_tree(path / "tests"),
        solution=_tree(path / "solution") if (path / "solution").is_dir() else None,
        agent_timeout_s=_seconds(agent, "agent", AGENT_TIMEOUT_S),
        verifier_timeout_s=_seconds(verifier, "verifier", VERIFIER_TIMEOUT_S),
        memory_mb=_memory_mb(environment),
        env={**dict(image.env), **_variables(environment, "environment")},
        verifier_env=_variables(verifier, "verifier"),
        solution_env=_variables(_table(settings, "solution"), "solution"),
        writable=_writable(image, texts),
    )


def _check_needs(
    settings: Mapping[str, JSON],
    environment: Mapping[str, JSON],
    agent: Mapping[str, JSON],
    verifier: Mapping[str, JSON],
) -> None:
    """Raise for what no sandbox has."""
    if settings.get("steps"):
        raise RefusedError("it has several steps")
    if environment.get("os", "linux") != "linux":
        raise RefusedError(f"it asks for {environment['os']}")
    for name in ("gpus", "tpu", "mcp_servers", "healthcheck", "skills_dir"):
        if environment.get(name):
            raise RefusedError(f"environment.{name}: a sandbox has none")
    if verifier.get("environment_mode") == "separate" or verifier.get("environment"):
        raise RefusedError("its verifier asks for a container of its own")
    for name, table in (("agent", agent), ("verifier", verifier)):
        if table.get("user") not in (None, "root", 0):
            raise RefusedError(f"{name}.user = {table['user']!r}: a sandbox has one user")


def _table(settings: Mapping[str, JSON], name: str) -> Mapping[str, JSON]:
    table = settings.get(name, {})
    if not isinstance(table, Mapping):
        raise RefusedError(f"task.toml: {name} = {table!r} is no table")
    return table


def _seconds(table: Mapping[str, JSON], name: str, default: float) -> float:
    value = table.get("timeout_sec", default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise RefusedError(f"task.toml: {name}.timeout_sec = {value!r}: give a positive number")
    return float(value)


def _word(environment: Mapping[str, JSON], name: str) -> str | None:
    value = environment.get(name)
    if not (value is None or isinstance(value, str)):
        raise RefusedError(f"task.toml: environment.{name} = {value!r} is no text")
    return value


def _memory_mb(environment: Mapping[str, JSON]) -> int | None:
    value = environment.get("memory_mb")
    if value is not None and (type(value) is not int or value <= 0):
        raise RefusedError(f"task.toml: environment.memory_mb = {value!r}: give a positive number")
    return value


def _variables(table: Mapping[str, JSON], name: str) -> dict[str, str]:
    found = {key: str(value) for key, value in _table(table, "env").items()}
    for key, value in found.items():
        if "=" in key or "\0" in key + value:
            raise RefusedError(f"{name}.env.{key} = {value!r} is no variable of a process")
        if "${" in value:
            raise RefusedError(
                f"{name}.env.{key} = {value!r} names a variable of this machine, which a sandbox does not see"
            )
    return found


def _tree(path: Path) -> Tree:
    try:
        return read_tree(path)
    except LeavesError as exc:
        raise RefusedError(f"{path.name}/: {exc}") from None


def _writable(image: Image, texts: list[str]) -> tuple[str, ...]:
    """The directories at the root that the image fills, or that the task's own words name."""
    places = [image.workdir, *(step.into for step in image.steps if isinstance(step, Copy))]
    found = set(OWN)
    for place in places:
        parts = PurePosixPath(place).parts[1:]
        if parts and parts[0] in _RESERVED - {"tmp"}:
            raise RefusedError(f"its files go to {place}, where a sandbox can write nothing")
        found.update(f"/{part}" for part in parts[:1])
    found.update(f"/{name}" for text in texts for name in _PATH.findall(text))
    return tuple(sorted(one for one in found if one[1:] not in _RESERVED))


def _texts(directory: Path) -> list[str]:
    scripts = (path for path in sorted(directory.rglob("*")) if path.suffix in (".sh", ".py"))
    return [_text(path) for path in scripts if not path.is_symlink()]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
