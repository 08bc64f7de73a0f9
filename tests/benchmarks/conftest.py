"""Programs of the folder benchmarks, as modules."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

PROGRAMS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def load_program(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Programs import one another by plain names, which other tests should not find."""
    monkeypatch.syspath_prepend(PROGRAMS)
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if (PROGRAMS / f"{name}.py").exists():
            del sys.modules[name]
