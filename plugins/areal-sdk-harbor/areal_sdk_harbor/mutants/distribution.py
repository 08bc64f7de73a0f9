"""`Distribution`: the files of a source distribution that carries its tests."""

import email.parser
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from areal_sdk import ConfigError
from areal_sdk_harbor.tree import Tree, read_tree

_BESIDE = frozenset({"docs", "doc", "examples", "example", "benchmarks", "bench", "scripts"})
_COMPILED = (".c", ".cpp", ".pyx", ".rs")


@dataclass(frozen=True, slots=True)
class Distribution:
    """A source distribution of pure Python."""

    name: str
    version: str
    license: str
    """The license that the metadata names."""
    tree: Tree
    place: str
    """The directory from which the distribution's packages are imported: `src` or the root."""
    sources: tuple[str, ...]
    tests: tuple[str, ...]
    """Files with tests."""

    def source(self, name: str) -> str:
        return next(content for file, _, content in self.tree.files if file == name).decode()

    def changed(self, name: str, source: str) -> Tree:
        """The tree with another text of one file."""
        files = (
            (file, mode, source.encode() if file == name else content)
            for file, mode, content in self.tree.files
        )
        return Tree(self.tree.folders, tuple(files), self.tree.links)


def read_distribution(path: Path) -> Distribution:
    """Read a source distribution. ConfigError if the file is none, or is not pure Python with tests."""
    with tempfile.TemporaryDirectory() as room:
        try:
            with tarfile.open(path) as archive:
                archive.extractall(room, filter="data")
            (root,) = Path(room).iterdir()
            about = email.parser.Parser().parsestr((root / "PKG-INFO").read_text(encoding="utf-8"))
            tree = read_tree(root)
        except (OSError, tarfile.TarError, ValueError) as exc:
            raise ConfigError(f"{path.name} is no source distribution: {exc}") from None
    names = [name for name, _, _ in tree.files]
    if any(name.endswith(_COMPILED) for name in names):
        raise ConfigError(f"{path.name} has code to compile: give one of pure Python")
    tests = tuple(name for name in names if _is_test(name))
    if not tests:
        raise ConfigError(f"{path.name} carries no tests (test_*.py, *_test.py)")
    place = "src" if any(name.startswith("src/") for name in names) else ""
    return Distribution(
        about["Name"],
        about["Version"],
        _license(about),
        tree,
        place,
        tuple(name for name in names if _is_source(name, place)),
        tests,
    )


def _is_test(name: str) -> bool:
    file = PurePosixPath(name)
    return file.suffix == ".py" and (file.stem.startswith("test_") or file.stem.endswith("_test"))


def _is_source(name: str, place: str) -> bool:
    file = PurePosixPath(name)
    folders = file.parts[:-1]
    if file.suffix != ".py" or _is_test(name) or file.name in ("setup.py", "conftest.py"):
        return False
    if {"tests", "test", "testing"} & set(folders) or _BESIDE & set(folders[:1]):
        return False
    return folders[:1] == (place,) if place else True


def _license(about: "email.message.Message") -> str:
    classified = [
        one.rpartition(" :: ")[2]
        for one in about.get_all("Classifier", [])
        if one.startswith("License ::")
    ]
    named = about["License-Expression"] or ", ".join(classified) or about["License"]
    return (named or "not said").strip().partition("\n")[0][:80]
