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


BUDGET = """
[lines]
goal = 10
budget = [{ figure = 20, why = "the size when this began" }]
"""
RAISED = BUDGET.replace('" }]', '" }, { figure = 30, why = WHY }]')


@pytest.mark.usefixtures("house")
def test_a_core_within_its_budget_passes() -> None:
    from house import overruns

    assert overruns({"lines": 20}, BUDGET) == []


@pytest.mark.usefixtures("house")
def test_a_core_that_outgrew_its_budget_names_figure_goal_and_cure() -> None:
    from house import overruns

    (complaint,) = overruns({"lines": 21}, BUDGET)
    assert complaint.startswith("lines: 21 exceeds 20 (goal: 10).")
    assert "add a line to [lines] that says why" in complaint


@pytest.mark.usefixtures("house")
def test_a_budget_is_raised_by_a_line_that_says_why() -> None:
    from house import overruns

    raised = RAISED.replace("WHY", '"each launcher now has a typed service"')
    assert overruns({"lines": 21}, raised) == []
    silent = RAISED.replace("WHY", '"more"')
    assert overruns({"lines": 21}, silent) == ["lines: say in a sentence why it may be 30"]


@pytest.mark.usefixtures("house")
def test_a_figure_without_a_budget_is_found() -> None:
    from house import overruns

    (complaint,) = overruns({"lines": 1, "modules": 1}, BUDGET)
    assert complaint.startswith("modules: ")


@pytest.mark.usefixtures("house")
def test_sizes_are_counted_without_init_files_where_modules_are_meant() -> None:
    from house import sizes

    sources = {
        "a/__init__.py": "x\n",
        "a/one.py": "x\n" * 60,
        "a/two.py": "x\n" * 59,
        "a/b/three.py": "x\n" * 61,
    }
    assert sizes(sources) == {
        "lines": 181,
        "modules": 3,
        "small_modules": 1,
        "largest_folder": 2,
        "longest_module": 61,
    }


@pytest.mark.usefixtures("house")
def test_the_budget_has_a_line_for_each_figure() -> None:
    from house import BUDGET, overruns, sizes

    found = dict.fromkeys(sizes({"a/one.py": ""}), 0)
    assert overruns(found, BUDGET.read_text()) == []


def test_every_deadline_and_pause_says_what_it_waits_for() -> None:
    silent = []
    for path in sorted((ROOT / "areal_sdk").rglob("*.py")):
        body = [] if "templates" in path.parts else ast.parse(path.read_text()).body
        for statement, following in zip(body, [*body[1:], None], strict=False):
            if not isinstance(statement, ast.Assign) or isinstance(following, ast.Expr):
                continue
            names = [name.id for name in statement.targets if isinstance(name, ast.Name)]
            if any(name.endswith("_S") and name.isupper() for name in names):
                silent.append(f"{path.relative_to(ROOT)}:{statement.lineno}: {names[0]}")
    assert silent == []
