"""The table of presets says of which parts each preset is made."""

import math
import re

import pytest

from areal_sdk.algorithms import (
    Algorithm,
    BatchNormalised,
    BatchStd,
    Clip,
    ConstantLength,
    GroupRelative,
    ImportanceWeight,
    Level,
    SoftGate,
    Surrogate,
    TruncatedRatio,
    presets,
)
from areal_sdk.builtin import ALGORITHMS
from tests.docs.blocks import ROOT

_ROW = re.compile(r"^\| \[`(.+?)`\]\(#\w+\) \| (.+) \|$", re.MULTILINE)


def rows() -> dict[str, list[str]]:
    page = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    return {
        name: [cell.strip() for cell in cells.split(" |")] for name, cells in _ROW.findall(page)
    }


def algorithm(name: str) -> Algorithm:
    made = getattr(presets, ALGORITHMS[name])()
    assert isinstance(made, Algorithm)
    return made


def estimator(part: object) -> str:
    if isinstance(part, BatchNormalised):
        return f"BatchNormalised({estimator(part.of)})"
    if isinstance(part, GroupRelative) and part.std is None:
        return "GroupRelative(std=None)"
    if isinstance(part, GroupRelative) and isinstance(part.std, BatchStd):
        return "GroupRelative(std=BatchStd())"
    return type(part).__name__


def region(part: object) -> str:
    if isinstance(part, Clip):
        assert part.dual is None
        return f"Clip({part.low}, {part.high})"
    if isinstance(part, SoftGate):
        return f"SoftGate({part.tau_positive}, {part.tau_negative})"
    if isinstance(part, TruncatedRatio):
        return f"TruncatedRatio({part.low}, {part.high})"
    return type(part).__name__


def weight(part: object) -> str:
    if not isinstance(part, ImportanceWeight):
        return f"`{type(part).__name__}`"
    if math.isinf(part.maximum):
        return "no bound"
    text = f"w <= {part.maximum:g}" + {"mask": ", else 0", "clamp": ""}[part.beyond]
    return text + (", by sequence" if part.level is Level.SEQUENCE else "")


def test_every_preset_has_a_row_and_a_section() -> None:
    page = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    assert list(rows()) == re.findall(r"^### `(.+)`$", page, re.MULTILINE)
    assert set(rows()) == set(ALGORITHMS)


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_a_row_names_the_parts_of_its_preset(name: str) -> None:
    made = algorithm(name)
    assert isinstance(made.objective, Surrogate)
    aggregation = type(made.aggregation).__name__
    if isinstance(made.aggregation, ConstantLength):
        aggregation += f"({made.aggregation.length})"
    cells = rows()[name]
    assert cells[0] == f"`{estimator(made.advantages)}`"
    assert cells[1].startswith(f"`{region(made.objective.region)}`")
    assert cells[2] == weight(made.objective.weight)
    assert cells[3] == f"`{aggregation}`"
    assert cells[5] == ("no" if made.learns_alone else "needed")
