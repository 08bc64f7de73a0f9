"""`scripts/compare_checkouts.py` reads the tables that benchmarks print."""

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "compare_checkouts.py"

OUTPUT = """\
some words first: 12 | 13
| transport | stall, least / median / worst, ms | tokens | error |
|---|---|---|---|
| disk | 13 / 17 / 31 | 1,234 | 4.8e-07 |
| tensor | not measured | 9 | 0.5 % |

| other | stall |
|---|---|
| disk | 2 |
"""


def test_the_middle_number_of_each_cell_counts() -> None:
    spec = importlib.util.spec_from_file_location("compare_checkouts", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.numbers(OUTPUT) == {
        ("disk", "stall, least / median / worst, ms"): 17.0,
        ("disk", "tokens"): 1234.0,
        ("disk", "error"): 4.8e-7,
        ("tensor", "tokens"): 9.0,
        ("tensor", "error"): 0.5,
        ("disk", "stall"): 2.0,
    }
