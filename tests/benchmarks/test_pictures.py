"""Tables and pictures of benchmarks are those of the curves that are committed beside them."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "benchmarks.md"


def test_the_cells_of_staleness_are_those_of_the_committed_curves(
    load_program: Callable[[str], ModuleType],
) -> None:
    program = load_program("staleness")
    found = program.by_series(program.load_curves(program.CURVES))
    section = DOCUMENT.read_text().partition("<!-- begin staleness -->")[2]
    num_cells = 0
    for learning_rate in program.LEARNING_RATES:
        written = section.partition(f"Learning rate {learning_rate:g}:\n")[2].splitlines()
        for label, *cells in program.rows_of(found, learning_rate):
            row = next(line for line in written if line.startswith(f"| {label} |"))
            shown = [cell.strip() for cell in row.strip("|").split("|")][1:]
            for cell, expected in zip(shown, cells, strict=True):
                assert cell == (expected or cell), (learning_rate, label)
                num_cells += bool(expected)
    assert num_cells == len(found) > 30


def test_table_and_picture_of_convergence_are_those_of_the_committed_curves(
    load_program: Callable[[str], ModuleType],
) -> None:
    program = load_program("convergence")
    found = program.by_series(program.load_curves(program.CURVES))
    assert program.section_of(found) in DOCUMENT.read_text()
    assert program.picture_of(found) == program.PICTURE.read_text()


@pytest.mark.long
def test_predictions_of_measured_runs_are_those_of_the_committed_figures(
    load_program: Callable[[str], ModuleType],
) -> None:
    program = load_program("plan")
    known = json.loads(program.RESULTS.read_text())
    off = sorted(abs(error) for _, error in program.errors(known).values())
    assert len(off) >= 12
    assert off[len(off) // 2] <= 0.10
    assert off[-1] <= 0.25
    document = program.DOCUMENT.read_text()
    for section in (program.measured_table, program.gpus_table):
        assert section(known) in document
    assert program.published_tables(known["fit"]) in document
