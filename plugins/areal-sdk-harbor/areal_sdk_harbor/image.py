"""The image of a task: what its Dockerfile asks for, and whether a sandbox of this machine has it.

A sandbox shows this machine's /usr and this Python. So an image of Debian, Ubuntu or this Python is there already, a
package is there if it is installed here, and files are put where the Dockerfile copies them.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath

from packaging.requirements import InvalidRequirement, Requirement

from areal_sdk_harbor.tree import LeavesError, Tree, read_tree

PLAIN = ("debian", "ubuntu")
"""Images whose programs this machine has. Their release is not compared."""
_HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
_IGNORED = frozenset({"CMD", "EXPOSE", "LABEL", "MAINTAINER"})
"""Instructions that mean nothing for a container in which Harbor runs the commands."""
_FETCHES = re.compile(
    r"(?:^|[;&|(`!]|\bsudo|\bdo|\bthen|\bif|\bwhile|\bexec)\s*(curl|wget|uvx|uv|apt-get|apt|pip3?|npm|npx|conda|git\s+clone|"
    r"python3?\s+-m\s+pip)(?:\s|$)"
)
_ALWAYS_THERE = re.compile(
    r"(apt-get|apt) (-\S+ )*(update|clean)( -\S+)*|rm -rf? /var/lib/apt/lists/\*"
)
_PIP = re.compile(r"(?:pip3?|python3? -m pip) install (.*)")
_APT = re.compile(r"(?:apt-get|apt) (?:-\S+ )*install (.*)")


class RefusedError(ValueError):
    """A task needs what a sandbox of this machine does not have."""


@dataclass(frozen=True, slots=True)
class Image:
    """The steps that fill an empty sandbox, and the directory where commands then begin."""

    workdir: str = "/"
    env: tuple[tuple[str, str], ...] = ()
    steps: tuple["Copy | Run", ...] = ()


@dataclass(frozen=True, slots=True)
class Copy:
    """Files that are put into a directory."""

    tree: Tree
    into: str


@dataclass(frozen=True, slots=True)
class Run:
    """A shell command in a directory."""

    command: str
    workdir: str


def read_image(environment: Path, *, docker_image: str | None, workdir: str | None) -> Image:
    """The image of a task's `environment/`. `RefusedError` with the reason if a sandbox cannot be like it."""
    for name in ("docker-compose.yaml", "docker-compose.yml", "compose.yaml"):
        if (environment / name).exists():
            raise RefusedError(f"environment/{name} asks for several containers")
    file = environment / "Dockerfile"
    if docker_image:
        _check_base(docker_image)
        return Image(workdir or "/app", steps=_whole_context(environment, workdir or "/app"))
    if not file.is_file():
        raise RefusedError("it has neither environment/Dockerfile nor environment.docker_image")
    if (environment / ".dockerignore").exists():
        raise RefusedError("environment/.dockerignore is not read here")
    builder = _Builder(environment)
    for line in _instructions(file.read_text(encoding="utf-8", errors="replace")):
        try:
            builder.add(line)
        except RefusedError:
            raise
        except (ValueError, LookupError) as exc:  # an open quotation mark, no words
            raise RefusedError(
                f"its Dockerfile has {line!r}, which is not understood: {exc}"
            ) from None
    if not builder.has_base:
        raise RefusedError("its Dockerfile has no FROM")
    return Image(workdir or builder.workdir, tuple(builder.env.items()), tuple(builder.steps))


def why_it_fetches(script: str) -> str:
    """The first command of a script that needs a network, with its line; empty if none is seen.

    >>> why_it_fetches("set -e\\napt-get update && apt-get install -y curl\\n")
    'line 2: apt-get'
    >>> why_it_fetches("python3 -m pytest /tests  # no curl here\\n")
    ''
    """
    for number, line in enumerate(script.splitlines(), 1):
        if found := _FETCHES.search(line.partition("#")[0]):
            return f"line {number}: {found[1]}"
    return ""


class _Builder:
    """Reads one instruction after another."""

    def __init__(self, context: Path) -> None:
        self.workdir = "/"
        self.env: dict[str, str] = {}
        self.steps: list[Copy | Run] = []
        self.has_base = False
        self._context = context

    def add(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        name, rest = name.upper(), rest.strip()
        if name == "FROM":
            if self.has_base:
                raise RefusedError("its Dockerfile has several stages")
            self.has_base = True
            _check_base(rest)
        elif name == "WORKDIR":
            self.workdir = self._absolute(_without_variables(rest.strip("\"'")))
        elif name == "ENV":
            self.env.update(_pairs(rest))
        elif name in ("COPY", "ADD"):
            self.steps += self._copies(name, rest)
        elif name == "RUN":
            if left := _what_is_left_to_run(rest):
                self.steps.append(Run(left, self.workdir))
        elif name == "USER":
            if rest not in ("root", "0"):
                raise RefusedError(f"its Dockerfile asks for user {rest}: a sandbox has one user")
        elif name not in _IGNORED:
            raise RefusedError(f"its Dockerfile has {name}, which is not understood")

    def _copies(self, name: str, rest: str) -> Iterator[Copy]:
        words = [word for word in shlex.split(rest) if not word.startswith("--chown")]
        if len(words) < 2 or words[0].startswith(("-", "[")):
            raise RefusedError(f"{name} {rest} is not understood")
        *sources, target = map(_without_variables, words)
        into = self._absolute(target)
        for source in sources:
            if "://" in source or any(sign in source for sign in "*?["):
                raise RefusedError(f"{name} {source} is not understood: name files")
            path = self._context / source
            if ".." in Path(source).parts or not path.exists():
                raise RefusedError(f"{name} {source}: environment/ has no such file")
            try:
                tree = read_tree(path if source != "." else self._context)
            except LeavesError as exc:
                raise RefusedError(f"{name} {source}: {exc}") from None
            is_renamed = path.is_file() and not target.endswith(("/", ".")) and len(sources) == 1
            if is_renamed and into != self.workdir:
                ((_, mode, data),) = tree.files
                place = PurePosixPath(into)
                tree, into = Tree(files=((place.name, mode, data),)), str(place.parent)
            yield Copy(tree, into)

    def _absolute(self, path: str) -> str:
        return str(PurePosixPath(self.workdir) / path)


def _whole_context(environment: Path, workdir: str) -> tuple[Copy, ...]:
    if not environment.is_dir():
        return ()
    try:
        return (Copy(read_tree(environment), workdir),)
    except LeavesError as exc:
        raise RefusedError(f"environment/: {exc}") from None


def _instructions(text: str) -> Iterator[str]:
    """The instructions of a Dockerfile, each as one line."""
    held = ""
    for line in text.splitlines():
        if line.lstrip().startswith("#") or not line.strip():
            continue
        if line.rstrip().endswith("\\"):
            held += line.rstrip()[:-1] + " "
            continue
        if "<<" in line:
            raise RefusedError("its Dockerfile has a here-document, which is not understood")
        yield " ".join((held + line).split()) if not held else (held + line).strip()
        held = ""
    if held:
        yield held.strip()


def _check_base(image: str) -> None:
    """Raise unless a sandbox of this machine can stand for the image."""
    words = [word for word in image.split() if not word.startswith("--platform")]
    name, _, tag = words[0].partition("@")[0].removeprefix("docker.io/").partition(":")
    name = name.removeprefix("library/")
    if len(words) > 1:
        raise RefusedError(f"FROM {image} names a stage, which is not understood")
    if name in PLAIN:
        return
    if name != "python":
        raise RefusedError(
            f"its image is {words[0]}: a sandbox stands for debian, ubuntu and python:{_HERE}"
        )
    asked = re.match(r"\d+(\.\d+)?", tag)
    if asked and not f"{_HERE}.".startswith(f"{asked[0]}."):
        raise RefusedError(f"its image is {words[0]}, and this Python is {_HERE}")


def _what_is_left_to_run(command: str) -> str:
    """The command without what this machine has already. `RefusedError`: it needs what is not here."""
    if command.startswith("["):
        command = shlex.join(_json_words(command))
    if not _FETCHES.search(command) and "/var/lib/apt/lists" not in command:
        return command
    parts = [" ".join(part.split()) for part in command.split("&&")]
    left = []
    for part in parts:
        if _ALWAYS_THERE.fullmatch(part):
            continue
        if found := _APT.fullmatch(part):
            _check_debian(_names(found[1]))
        elif found := _PIP.fullmatch(part):
            _check_python(_names(found[1]))
        elif why := why_it_fetches(part):
            raise RefusedError(f"RUN {part}: a sandbox has no network ({why.partition(': ')[2]})")
        else:
            left.append(part)
    return " && ".join(left)


def _json_words(command: str) -> list[str]:
    try:
        return [str(word) for word in json.loads(command)]
    except ValueError:
        raise RefusedError(f"RUN {command} is not understood") from None


def _names(rest: str) -> list[str]:
    words = shlex.split(rest)
    if {"-r", "-c", "-e", "--requirement"} & set(words):
        raise RefusedError(f"pip install {rest}: name the packages in the Dockerfile")
    return [word for word in words if not word.startswith("-")]


def _check_debian(names: Sequence[str]) -> None:
    for name in names:
        name = name.partition("=")[0]
        if not _is_installed(name):
            raise RefusedError(
                f"it needs the Debian package {name}, which this machine lacks: apt-get install {name}"
            )


def _is_installed(name: str) -> bool:
    if shutil.which("dpkg-query") is None:
        return False
    words = ["dpkg-query", "-W", "-f=${db:Status-Status}", name]
    return subprocess.run(words, capture_output=True, text=True).stdout.startswith("installed")


def _check_python(names: Sequence[str]) -> None:
    for name in names:
        try:
            asked = Requirement(name)
            if asked.specifier.contains(version(asked.name), prereleases=True):
                continue
            why = f"{asked.name} {version(asked.name)} is installed"
        except InvalidRequirement:
            why = "it is not understood"
        except PackageNotFoundError:
            why = "it is not installed"
        raise RefusedError(f"it needs the Python package {name}, and {why}: pip install '{name}'")


def _pairs(rest: str) -> dict[str, str]:
    words = shlex.split(rest)
    if "=" not in words[0]:  # the old form: ENV NAME value
        return {words[0]: _without_variables(" ".join(words[1:]))}
    return {name: _without_variables(value) for name, _, value in (w.partition("=") for w in words)}


def _without_variables(text: str) -> str:
    if "$" in text:
        raise RefusedError(f"its Dockerfile has a variable in {text!r}, which is not understood")
    return text
