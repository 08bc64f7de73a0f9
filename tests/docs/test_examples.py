"""The examples in the code's own docstrings say what is true."""

import doctest
import importlib
from pathlib import Path

import pytest

import areal_sdk

ROOT = Path(areal_sdk.__file__).parent


def _modules_with_examples() -> list[str]:
    files = [path for path in ROOT.rglob("*.py") if ">>> " in path.read_text(encoding="utf-8")]
    return sorted(
        ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in files
        if "templates" not in path.parts
    )


@pytest.mark.parametrize("name", _modules_with_examples())
def test_the_examples_of_a_module_hold(name: str) -> None:
    module = importlib.import_module(name)
    assert not doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed
