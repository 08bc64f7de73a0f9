"""A blind check of the package's folders and names: which folder is this line of code from?

    python scripts/blind_check.py --seed 7 --key key.txt            # 20 single lines
    python scripts/blind_check.py --seed 7 --key key.txt --around 3 # with three lines before and after

Answer with `docs/architecture.md` alone at hand, one folder a line. Then read the key. A wrong answer is a
fault of the folder, of a name in the line, or of the table: mend that.
"""

import argparse
import builtins
import keyword
import random
import re
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "areal_sdk"

_WORD = re.compile(r"[A-Za-z][A-Za-z_]{2,}")
_METHODS = {name for kind in (str, list, dict, set) for name in dir(kind)}
_SAYS_NOTHING = {*keyword.kwlist, *dir(builtins), *_METHODS, "self", "cls", "Any"}


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a module, and what stands around it."""

    path: Path
    number: int
    lines: tuple[str, ...]

    @property
    def folder(self) -> str:
        return str(self.path.parent.relative_to(PACKAGE.parent))

    def show(self, around: int) -> str:
        shown = range(max(0, self.number - around), min(len(self.lines), self.number + around + 1))
        mark = {index: ">" if index == self.number and around else " " for index in shown}
        return "\n".join(f"   {mark[index]} {self.lines[index]}" for index in shown)


def says_something(line: str) -> bool:
    """Whether a line is more than an import, a bracket, a blank, a keyword or a built-in name.

    >>> [says_something(line) for line in ("from x import abc", "    )", "else:", "lines.append(")]
    [False, False, False, False]
    >>> says_something("num_rows = len(batch.rows)")
    True
    """
    text = line.strip()
    if re.match(r"(from|import|#|@)\b|@", text):
        return False
    return len(set(_WORD.findall(text)) - _SAYS_NOTHING) >= 2


def places() -> list[Place]:
    """Every line of the package that says something, in a stable order."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if "templates" in path.parts or path.name == "__init__.py":
            continue
        lines = tuple(path.read_text().splitlines())
        is_import = _import_lines(lines)
        found += [
            Place(path, number, lines)
            for number, line in enumerate(lines)
            if number not in is_import and says_something(line)
        ]
    return found


def _import_lines(lines: tuple[str, ...]) -> set[int]:
    """The lines of import statements, also of those in brackets."""
    found, is_open = set(), False
    for number, line in enumerate(lines):
        if is_open or re.match(r"\s*(from \S+ import|import )", line):
            found.add(number)
            is_open = ("(" in line or is_open) and ")" not in line
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--key", type=Path, required=True, help="where the answers are written")
    parser.add_argument("--lines", type=int, default=20)
    parser.add_argument("--around", type=int, default=0, help="lines shown before and after")
    options = parser.parse_args()
    drawn = random.Random(options.seed).sample(places(), options.lines)
    for index, place in enumerate(drawn, 1):
        print(f"{index:2}\n{place.show(options.around)}")
    key = [
        f"{index:2} {place.folder:32} {place.path.name}:{place.number + 1}"
        for index, place in enumerate(drawn, 1)
    ]
    options.key.write_text("\n".join(key) + "\n")


if __name__ == "__main__":
    main()
