"""A benchmark of this checkout and of another checkout in turns: is it slower, or less exact?

    git worktree add ../before COMMIT        # and an environment for it: make -C ../before install
    python scripts/compare_checkouts.py ../before swap.py --rounds 3 -- --updates 12

Both checkouts run their own copy of the program, each with its own environment. The cells of the printed tables are
compared where both have them. Of a cell such as `12 / 17 / 31` the middle number counts. A ratio is the median of the
rounds now, divided by the median before.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
Cell = tuple[str, str]
"""The first cell of the row, and the column's head."""


def main(before: Path, program: str, arguments: list[str], *, rounds: int) -> None:
    now = Path(__file__).parents[1]
    seen: dict[Path, dict[Cell, list[float]]] = {now: {}, before: {}}
    for number in range(rounds):
        for checkout in (now, before) if number % 2 else (before, now):
            print(f"round {number + 1}: {checkout}", file=sys.stderr)
            for cell, value in numbers(run(checkout, program, arguments)).items():
                seen[checkout].setdefault(cell, []).append(value)
    rows = []
    for (row, column), values in seen[now].items():
        if other := seen[before].get((row, column)):
            a, b = statistics.median(values), statistics.median(other)
            rows.append((row, column, f"{a:g}", f"{b:g}", f"{a / b:.2f}x" if b else "-"))
    if not rows:
        raise SystemExit(
            f"{program} prints no table with the same rows and columns in both checkouts."
        )
    for line in (("row", "column", "now", "before", "now to before"), *rows):
        print(" | ".join(line))


def run(checkout: Path, program: str, arguments: list[str]) -> str:
    python = checkout / ".venv" / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"{checkout} has no environment: make -C {checkout} install")
    done = subprocess.run(
        [python, checkout / "benchmarks" / program, *arguments],
        cwd=checkout,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{program} ended with {done.returncode} in {checkout}")
    return done.stdout


def numbers(output: str) -> dict[Cell, float]:
    """The middle number of each cell of the Markdown tables in `output`."""
    found: dict[Cell, float] = {}
    header: list[str] = []
    for line in output.splitlines():
        if not line.startswith("| "):
            header = [] if not line.startswith("|--") else header
            continue
        first, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not header:
            header = cells
            continue
        for column, cell in zip(header, cells, strict=False):
            if values := [float(text.replace(",", "")) for text in NUMBER.findall(cell)]:
                found[first, column] = values[len(values) // 2]
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("program", help="a file in benchmarks/ of both")
    parser.add_argument("arguments", nargs="*", help="of the program, after --")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    main(options.before.resolve(), options.program, options.arguments, rounds=options.rounds)
