"""The table of coverage adds up by folder, and names the modules with the most that never ran."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))


def test_a_folder_has_the_sums_of_its_modules() -> None:
    from coverage_table import Covered, table

    modules = {
        "pkg/errors.py": Covered(10, 10, 0, 0),
        "pkg/a/one.py": Covered(10, 5, 4, 1),
        "pkg/a/deep/two.py": Covered(30, 25, 6, 4),
    }
    assert list(table(modules))[2:] == [
        "| pkg | 10 | 100 % | 0 | - |",
        "| pkg/a | 40 | 75 % | 10 | 50 % |",
        "| all | 50 | 80 % | 10 | 50 % |",
    ]


def test_the_holes_are_the_modules_with_the_most_that_never_ran() -> None:
    from coverage_table import Covered, holes

    modules = {
        "pkg/full.py": Covered(10, 10, 2, 2),
        "pkg/small.py": Covered(2, 0, 0, 0),
        "pkg/large.py": Covered(100, 95, 10, 8),
    }
    assert list(holes(modules, 3)) == [
        "pkg/large.py: 7 lines and branches, 95 % of the lines run",
        "pkg/small.py: 2 lines and branches, 0 % of the lines run",
    ]
    assert len(list(holes(modules, 1))) == 1
