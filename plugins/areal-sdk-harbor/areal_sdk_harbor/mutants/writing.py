"""Writes a mutant as a task in Harbor's format."""

import io
import json
import tarfile
from pathlib import Path

from areal_sdk_harbor.mutants.distribution import Distribution
from areal_sdk_harbor.mutants.making import INSIDE, Broken
from areal_sdk_harbor.tree import Tree

_MOST_NAMES = 8
_TEST = "#!/bin/bash\npython3 -I /tests/grade.py\n"
_DOCKERFILE = "FROM python\nRUN pip install pytest\nWORKDIR /app\nCOPY tree .\n"


def write_task(directory: Path, given: Distribution, broken: Broken, *, timeout_s: float) -> None:
    """The mutated tree, the tests with their pristine surroundings, and the truth as the solution."""
    tree = given.changed(broken.file, broken.mutant.source)
    _put(directory / "environment" / "tree", tree)
    expected = {
        "sources": given.sources,
        "place": given.place,
        "files": given.tests,
        "tests": broken.passing,
        "timeout_s": timeout_s,
    }
    texts = {
        "task.toml": _settings(directory.name, given, broken, timeout_s),
        "instruction.md": _instruction(given, broken),
        "environment/Dockerfile": _DOCKERFILE,
        "tests/test.sh": _TEST,
        "tests/expected.json": json.dumps(expected),
        "tests/grade.py": (INSIDE / "grade.py").read_text(encoding="utf-8"),
        "tests/run_tests.py": (INSIDE / "run_tests.py").read_text(encoding="utf-8"),
        "solution/solve.sh": f"#!/bin/bash\ncp /solution/truth.py /app/{broken.file}\n",
        "solution/truth.py": given.source(broken.file),
    }
    for name, text in texts.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    # An archive: directories that texts of the package name are no directories of the task.
    (directory / "tests" / "pristine.tar").write_bytes(_archive(tree))


def _put(directory: Path, tree: Tree) -> None:
    for folder in ("", *tree.folders):
        (directory / folder).mkdir(parents=True, exist_ok=True)
    for name, mode, content in tree.files:
        (directory / name).write_bytes(content)
        (directory / name).chmod(mode)
    for name, target in tree.links:
        (directory / name).symlink_to(target)


def _archive(tree: Tree) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name in tree.folders:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder)
        for name, mode, content in tree.files:
            file = tarfile.TarInfo(name)
            file.size, file.mode = len(content), mode
            archive.addfile(file, io.BytesIO(content))
        for name, target in tree.links:
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)
    return raw.getvalue()


def _instruction(given: Distribution, broken: Broken) -> str:
    names = [f"    {name}" for name in broken.failing[:_MOST_NAMES]]
    if more := len(broken.failing) - len(names):
        names.append(f"    and {more} more")
    return (
        f"The working directory has the sources of {given.name} {given.version}. One function has a mistake, and "
        f"{len(broken.failing)} of {len(broken.passing)} tests fail:\n\n"
        + "\n".join(names)
        + "\n\n"
        "Run tests with `python3 -m pytest -q -c /dev/null NAME`. Mend the function, so that all tests pass. Only your "
        "changes of the package's own source files count; tests, settings and new files are taken from the original.\n"
    )


def _settings(name: str, given: Distribution, broken: Broken, timeout_s: float) -> str:
    mutant = broken.mutant
    about = {
        "distribution": given.name,
        "version": given.version,
        "license": given.license,
        "file": broken.file,
        "function": mutant.function,
        "kind": mutant.kind,
    }
    told = "\n".join(f"{key} = {json.dumps(value)}" for key, value in about.items())
    return (
        f'schema_version = "1.4"\n\n[task]\nname = "mutants/{name}"\n\n[metadata]\n{told}\nline = {mutant.line}\n\n'
        f"[verifier]\ntimeout_sec = {2 * timeout_s + 30}\n\n[agent]\ntimeout_sec = 600.0\n\n"
        # So that the agent imports the sources, and pytest nothing of this machine's other packages.
        f'[environment.env]\nPYTHONPATH = "/app/{given.place}"\nPYTEST_DISABLE_PLUGIN_AUTOLOAD = "1"\n'
    )
