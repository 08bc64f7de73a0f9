"""Rules of the house: how a docstring begins, and what a test module may import."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SAMPLE = '''"""What this module has."""

SIZE = 1
"""Of one part."""

class Part:
    """The part."""

    where: str
    """Its place."""

    def count(self) -> int:
        """How many there are."""

    def find(self) -> int:
        """Find one. What it is does not matter."""
'''


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))


@pytest.mark.usefixtures("house")
def test_every_docstring_begins_with_its_noun_or_its_verb() -> None:
    from house import fragments

    found = fragments(ROOT)
    assert not found, "say what the thing is, as CONTRIBUTING.md asks:\n" + "\n".join(found)


@pytest.mark.usefixtures("house")
def test_a_fragment_is_found_wherever_a_docstring_may_be(tmp_path: Path) -> None:
    from house import fragments

    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "sample.py").write_text(SAMPLE)
    assert fragments(tmp_path, ["folder"]) == [
        "folder/sample.py:1: What this module has.",
        "folder/sample.py:4: Of one part.",
        "folder/sample.py:10: Its place.",
        "folder/sample.py:13: How many there are.",
    ]


def test_no_test_module_imports_from_another() -> None:
    found = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                names.append(node.module or "")
            if any(part.startswith("test_") for name in names for part in name.split(".")):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not found, (
        "what tests share stands in tests/toolbox, or beside them in a module without tests:\n"
        + "\n".join(found)
    )
