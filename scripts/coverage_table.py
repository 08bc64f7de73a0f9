"""A table of coverage by folder, and the modules with the most that no test reaches.

    python scripts/coverage_table.py build/coverage.json             # by folder of the package
    python scripts/coverage_table.py build/coverage.json --holes 20  # more modules

`make coverage` measures and calls it. The file is what `coverage json` writes, with branches.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Covered:
    """Lines and branches of some modules, and how many of them ran."""

    lines: int = 0
    lines_run: int = 0
    branches: int = 0
    branches_run: int = 0

    def __add__(self, other: "Covered") -> "Covered":
        return Covered(
            self.lines + other.lines,
            self.lines_run + other.lines_run,
            self.branches + other.branches,
            self.branches_run + other.branches_run,
        )

    @property
    def missed(self) -> int:
        """Lines and branches that no test reached."""
        return self.lines - self.lines_run + self.branches - self.branches_run

    @staticmethod
    def read(summary: Mapping[str, int]) -> "Covered":
        return Covered(
            summary["num_statements"],
            summary["covered_lines"],
            summary["num_branches"],
            summary["covered_branches"],
        )


def share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def folder_of(name: str) -> str:
    """The folder of the package that a module is in, or the package itself."""
    parts = Path(name).parts
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def table(modules: Mapping[str, Covered]) -> Iterator[str]:
    folders: dict[str, Covered] = {}
    for name, covered in modules.items():
        folder = folder_of(name)
        folders[folder] = folders.get(folder, Covered()) + covered
    yield "| folder | lines | of them run | branches | of them taken |"
    yield "|---|---|---|---|---|"
    rows: Iterable[tuple[str, Covered]] = sorted(folders.items())
    for folder, covered in (*rows, ("all", sum(folders.values(), Covered()))):
        yield (
            f"| {folder} | {covered.lines} | {share(covered.lines_run, covered.lines)} "
            f"| {covered.branches} | {share(covered.branches_run, covered.branches)} |"
        )


def holes(modules: Mapping[str, Covered], count: int) -> Iterator[str]:
    ordered = sorted(modules.items(), key=lambda item: (-item[1].missed, item[0]))
    for name, covered in ordered[:count]:
        if covered.missed:
            run = share(covered.lines_run, covered.lines)
            yield f"{name}: {covered.missed} lines and branches, {run} of the lines run"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--holes", type=int, default=10, metavar="MODULES")
    arguments = parser.parse_args()
    read: dict[str, Any] = json.loads(arguments.file.read_text())["files"]
    modules = {name: Covered.read(module["summary"]) for name, module in read.items()}
    print(*table(modules), "", *holes(modules, arguments.holes), sep="\n")


if __name__ == "__main__":
    main()
