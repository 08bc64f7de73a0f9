"""The tree at the top of `errors` shows every exception of the SDK, with its parent and its file."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import areal_sdk
from areal_sdk import errors

PACKAGE = Path(areal_sdk.__file__).parent
BRANCH = re.compile(r"( *)[*+-] ([\w, ]+?)(?: \[([\w/.]+)\])?(?: \(also \w+\))?(?::|$)")


def drawn() -> Iterator[tuple[str, str, str]]:
    """Name, parent and file of each exception in the drawing."""
    path = ["ArealError"]
    for line in (errors.__doc__ or "").splitlines():
        if (branch := BRANCH.match(line)) is None:
            continue
        depth = len(branch[1]) // 2
        for name in branch[2].split(", "):
            yield name, path[depth - 1] if depth else "Exception", branch[3] or "errors/__init__.py"
            path[depth:] = [name]


def defined() -> Iterator[tuple[str, str, str]]:
    """Name, parent and file of each class that is an `ArealError`."""
    classes = {
        node.name: (node.name, node.bases[0].id, str(path.relative_to(PACKAGE)))
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.bases and isinstance(node.bases[0], ast.Name)
    }
    for name, parent, where in classes.values():
        above = name
        while above in classes:
            if above == "ArealError":
                yield name, parent, where
            above = classes[above][1]


def test_the_tree_at_the_top_of_errors_shows_every_exception_of_the_sdk() -> None:
    assert sorted(drawn()) == sorted(defined())
    assert len(list(defined())) > 30
