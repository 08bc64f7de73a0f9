"""User code is found by file and name, and what cannot be found says what to do."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from areal_sdk.errors import ConfigError
from areal_sdk.process.user_code import load_user_module, load_user_object, reference_to
from tests.process.entries import Scorer

AGENT = """
from dataclasses import dataclass
from tools import answer

@dataclass
class Calculator:
    result: int = answer

def tasks(split): ...

if __name__ == "__main__":
    raise SystemExit("must not run")
"""


@pytest.fixture
def agent_file(tmp_path: Path) -> Iterator[Path]:
    before = list(sys.path), set(sys.modules)
    (tmp_path / "tools.py").write_text("answer = 42\n")
    (tmp_path / "agent.py").write_text(AGENT)
    yield tmp_path / "agent.py"
    sys.path[:] = before[0]
    for name in set(sys.modules) - before[1]:
        del sys.modules[name]


def test_a_file_is_imported_once_with_its_neighbours(agent_file: Path) -> None:
    module = load_user_module(agent_file)
    assert module.Calculator().result == 42
    assert load_user_module(agent_file) is module
    assert load_user_object(f"{agent_file}::Calculator") is module.Calculator


def test_a_reference_leads_back_to_the_same_object(agent_file: Path) -> None:
    calculator = load_user_module(agent_file).Calculator
    assert reference_to(calculator) == f"{agent_file}::Calculator"
    assert load_user_object(reference_to(calculator)) is calculator
    assert load_user_object(reference_to(Scorer.Inner)) is Scorer.Inner


def test_a_module_and_name_is_a_reference_too() -> None:
    assert load_user_object("tests.process.entries:Scorer.Inner") is Scorer.Inner


def test_a_file_in_a_package_keeps_its_relative_imports(agent_file: Path) -> None:
    package = agent_file.parent / "my_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "helper.py").write_text("value = 7\n")
    (package / "agent.py").write_text("from .helper import value\n")
    assert load_user_module(package / "agent.py").value == 7


def _local_class() -> type:
    class Local: ...

    return Local


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (lambda: None, "define it at the top level of a .py file"),
        (_local_class(), "define it at the top level of a .py file"),
        (3, "has no name that another process could import"),
    ],
)
def test_what_no_other_process_can_find_names_the_cure(item: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        reference_to(item)


def test_a_notebook_class_names_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    class Notebook: ...

    Notebook.__module__, Notebook.__qualname__ = "__main__", "Notebook"
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    with pytest.raises(ConfigError, match=r"'Notebook' is defined in a notebook.*move it to a .py"):
        reference_to(Notebook)


def test_a_missing_name_lists_what_is_there(agent_file: Path) -> None:
    with pytest.raises(ConfigError, match=r"no 'Calc' in .*agent.py; .*: Calculator, tasks"):
        load_user_object(f"{agent_file}::Calc")


def test_a_broken_file_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "syntax.py").write_text("x = 1\nclass class\n")
    with pytest.raises(ConfigError, match=r"syntax.py could not be imported: line 2: invalid"):
        load_user_module(tmp_path / "syntax.py")
    (tmp_path / "raises.py").write_text("\n\n1 / 0\n")
    with pytest.raises(ConfigError, match="line 3: ZeroDivisionError"):
        load_user_module(tmp_path / "raises.py")
    with pytest.raises(ConfigError, match=r"no such file: /.*missing\.py$"):
        load_user_module(tmp_path / "missing.py")


def test_a_relative_file_that_is_not_there_says_where_it_was_sought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "desk").mkdir()
    (tmp_path / "desk" / "desk.py").touch()
    monkeypatch.chdir(tmp_path)
    where = re.escape(f"no such file: desk.py in {tmp_path} (a relative path begins at the current")
    with pytest.raises(ConfigError, match=where):
        load_user_module(Path("desk.py"))
