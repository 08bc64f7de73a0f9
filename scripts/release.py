"""Build and check the distribution that a tag names; publishing what comes out is one `twine upload`.

    python scripts/release.py v0.1.0 --out dist                   # the core
    python scripts/release.py areal-sdk-math-v0.1.0 --out dist    # a plugin

The version of the tag, of the distribution and of the newest section of its changelog must be the
same, and that section must have its date. The wheel is installed into an empty environment and must list itself among its plugins,
or must at least be imported if it has no hooks.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
CORE = "areal-sdk"
TAG = re.compile(
    r"(?:(?P<name>areal-sdk-[a-z0-9-]+)-)?v(?P<version>\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?)"
)


class ReleaseError(Exception):
    """The tag and the tree do not agree; the message says on what."""


@dataclass(frozen=True, slots=True)
class Release:
    """The distribution that a tag names."""

    name: str
    version: str
    directory: Path

    @property
    def is_core(self) -> bool:
        return self.name == CORE


def read_tag(tag: str, root: Path = ROOT) -> Release:
    """The release that `tag` names, once tag, version and changelog agree."""
    match = TAG.fullmatch(tag)
    if match is None:
        raise ReleaseError(
            f"tag {tag!r}: want v1.2.3 for the core, areal-sdk-NAME-v1.2.3 for a plugin"
        )
    name = match["name"] or CORE
    directory = root if name == CORE else root / "plugins" / name
    if not (directory / "pyproject.toml").is_file():
        known = sorted(path.parent.name for path in root.glob("plugins/*/pyproject.toml"))
        raise ReleaseError(
            f"tag {tag!r} names no distribution of this tree; plugins: {', '.join(known)}"
        )
    release = Release(name, match["version"], directory)
    _check_version(release)
    _check_changelog(release)
    return release


def build(release: Release, out: Path) -> list[Path]:
    """The sdist and the wheel, made, read by twine, and the wheel installed and imported."""
    _run(sys.executable, "-m", "build", "--outdir", str(out), str(release.directory))
    stem = f"{release.name.replace('-', '_')}-{release.version}"
    built = [out / f"{stem}.tar.gz", out / f"{stem}-py3-none-any.whl"]
    _run(sys.executable, "-m", "twine", "check", "--strict", *map(str, built))
    with tempfile.TemporaryDirectory() as scratch:
        _install_and_import(release, built[1], Path(scratch))
    return built


def needed(directory: Path, root: Path = ROOT) -> list[Path]:
    """The directories of the distributions of this tree that the one in `directory` needs. They may not be
    published yet."""
    project = tomllib.loads((directory / "pyproject.toml").read_text())["project"]
    names = [
        re.split(r"[<>=~! \[]", line, maxsplit=1)[0] for line in project.get("dependencies", [])
    ]
    found = [root if name == CORE else root / "plugins" / name for name in names]
    return [path for path in found if (path / "pyproject.toml").is_file()]


def _check_version(release: Release) -> None:
    project = tomllib.loads((release.directory / "pyproject.toml").read_text())["project"]
    version = project.get("version") or _dynamic_version(release)
    if version != release.version:
        raise ReleaseError(f"{release.name}: the tag says {release.version}, the tree {version}")


def _dynamic_version(release: Release) -> str:
    module = release.directory / release.name.replace("-", "_") / "__init__.py"
    match = re.search(r'^__version__ = "(.+)"$', module.read_text(), re.MULTILINE)
    if match is None:
        raise ReleaseError(f'{module}: no line __version__ = "..."')
    return match[1]


def _check_changelog(release: Release) -> None:
    path = release.directory / "CHANGELOG.md"
    if not path.is_file():
        raise ReleaseError(f"{release.name}: there is no CHANGELOG.md beside its pyproject.toml")
    sections = re.findall(r"^## \[?([^\]\s]+)(.*)", path.read_text(), re.MULTILINE)
    newest, rest = next((found for found in sections if found[0] != "Unreleased"), ("none", ""))
    if newest != release.version:
        raise ReleaseError(
            f"{path.name} of {release.name}: the newest section is {newest}, not {release.version}"
        )
    if not re.search(r"\d{4}-\d{2}-\d{2}", rest):
        raise ReleaseError(
            f"{path.name} of {release.name}: section {newest} has no date; write `## {newest} - YYYY-MM-DD`"
        )


def _install_and_import(release: Release, wheel: Path, scratch: Path) -> None:
    venv.create(scratch / "venv", with_pip=True)
    python = scratch / "venv" / "bin" / "python"
    wheels = [str(wheel)]
    for directory in needed(release.directory):
        _run(sys.executable, "-m", "build", "--wheel", "--outdir", str(scratch), str(directory))
    wheels += map(str, scratch.glob("*.whl"))
    constraints = str(ROOT / "constraints.txt")
    _run(str(python), "-m", "pip", "install", "--quiet", "--constraint", constraints, *wheels)
    if not _is_plugin(release):
        _run(str(python), "-c", f"import {release.name.replace('-', '_')}")
        return
    command = [str(python.with_name("areal-sdk")), "plugins", "--json"]
    listed = subprocess.run(command, cwd=scratch, check=True, capture_output=True, text=True).stdout
    loaded = {p["distribution"] for p in json.loads(listed)["plugins"] if p["status"] == "loaded"}
    if release.name not in loaded:
        raise ReleaseError(
            f"{release.name} is installed, and `areal-sdk plugins` did not load it:\n{listed}"
        )


def _is_plugin(release: Release) -> bool:
    """Whether the distribution has hooks. Others are imported by the core when a setting asks for them."""
    project = tomllib.loads((release.directory / "pyproject.toml").read_text())["project"]
    return "areal_sdk" in project.get("entry-points", {})


def _run(*command: str) -> None:
    subprocess.run(command, cwd=ROOT, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("tag")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    arguments = parser.parse_args()
    try:
        built = build(read_tag(arguments.tag), arguments.out.resolve())
    except ReleaseError as exc:
        sys.exit(f"release: {exc}")
    print("built and checked; publish with: twine upload " + " ".join(map(str, built)))


if __name__ == "__main__":
    main()
