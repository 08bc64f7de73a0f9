"""Figures of the package's structure, for a comparison before and after a large change.

    python scripts/house.py              # of this tree
    python scripts/house.py --walk       # also the way of `train(agent)` to the first sampled token
    python scripts/house.py --start-up 5 # also the seconds of that way, the median of five processes
    python scripts/house.py --fragments  # the docstrings that begin as a fragment, and nothing else
    python scripts/house.py --draw 7     # 30 docstrings of the core, drawn with this seed: does one need a second reading?
    python scripts/house.py --check      # fail if the core is larger than scripts/budget.toml allows

The walk runs one training step of a tiny model and follows the main process. A room is a module that
is entered; a return is a call into a room that was left before. A passage is a pair of rooms: moves and
returns count each round of a loop, passages count it once. The live view paints by a clock, so its moves
are left out: their number would depend on the machine.
"""

import argparse
import ast
import asyncio
import inspect
import random
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

ROOT = Path.cwd()
SMALL = 60
BUDGET = Path(__file__).with_name("budget.toml")

DOCUMENTED = ("areal_sdk", "plugins", "benchmarks", "scripts", "examples")
"""Folders whose docstrings begin with a noun or a verb."""
FRAGMENT = re.compile(
    r"\s*(?:>>>|(?:"
    r"about|above|across|after|against|also|among|and|as|at|because|before|behind|"
    r"below|beside|besides|between|beyond|but|by|during|else|for|from|how|"
    r"however|if|in|inside|into|it|its|of|on|once|or|otherwise|ours|"
    r"outside|over|since|so|than|that|theirs|then|they|those|through|to|"
    r"under|unless|until|upon|via|what|whatever|when|where|which|whichever|"
    r"while|who|whoever|whom|whose|why|with|within|without"
    r")(?![\w'-]))",
    re.IGNORECASE,
)
"""Beginning of a docstring that does not say what the thing is: "Of one request", "What is left", an example."""


def modules() -> dict[str, str]:
    paths = (path for path in (ROOT / "areal_sdk").rglob("*.py") if "templates" not in path.parts)
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}


def sizes(sources: Mapping[str, str]) -> dict[str, int]:
    """The figures that `scripts/budget.toml` bounds, by the names that it has for them."""
    own = {name: text for name, text in sources.items() if not name.endswith("__init__.py")}
    folders = Counter(name.rsplit("/", 1)[0] for name in own)
    return {
        "lines": sum(text.count("\n") for text in sources.values()),
        "modules": len(own),
        "small_modules": sum(text.count("\n") < SMALL for text in own.values()),
        "largest_folder": max(folders.values()),
        "longest_module": max(text.count("\n") for text in sources.values()),
    }


def overruns(found: Mapping[str, int], budget: str) -> list[str]:
    """Complaints about a core that is larger than its budget, and about a budget that does not say why."""
    listed = tomllib.loads(budget)
    complaints = [
        f"{name}: the budget has it and house.py does not, or the reverse"
        for name in sorted(found.keys() ^ listed.keys())
    ]
    for name in found.keys() & listed.keys():
        raised = listed[name]["budget"]
        complaints += [
            f"{name}: say in a sentence why it may be {line['figure']}"
            for line in raised
            if len(line.get("why", "").split()) < 4
        ]
        allowed = raised[-1]["figure"]
        if found[name] > allowed:
            complaints.append(
                f"{name}: {found[name]} exceeds {allowed} (goal: {listed[name]['goal']}). "
                f"Make the core smaller, or add a line to [{name}] that says why it may grow."
            )
    return sorted(complaints)


def check() -> None:
    """Print each figure beside its budget and its goal; exit with 1 if one exceeds its budget."""
    found, budget = sizes(modules()), BUDGET.read_text()
    complaints = overruns(found, budget)
    for name, limits in tomllib.loads(budget).items():
        allowed = limits["budget"][-1]["figure"]
        print(f"{name:16} {found.get(name, 0):6} of {allowed:6}, goal {limits['goal']:6}")
    if complaints:
        sys.exit(f"{BUDGET.parent.name}/{BUDGET.name}:\n" + "\n".join(complaints))


def figures(sources: dict[str, str]) -> dict[str, object]:
    lines = {name: text.count("\n") for name, text in sources.items()}
    own = [name for name in sources if not name.endswith("__init__.py")]
    folders = Counter(name.rsplit("/", 1)[0] for name in own)
    folder, size = folders.most_common(1)[0]
    classes = Counter(
        node.name
        for text in sources.values()
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef)
    )
    tests = sum(path.read_text().count("\n") for path in (ROOT / "tests").rglob("*.py"))
    return {
        "modules": len(own),
        f"modules under {SMALL} lines": sum(lines[name] < SMALL for name in own),
        "folders": len(folders),
        "largest folder": f"{folder}, {size} modules",
        "longest module": max((count, name) for name, count in lines.items()),
        "lines of the package": sum(lines.values()),
        "lines of tests": tests,
        "class names that occur twice": sorted(name for name, n in classes.items() if n > 1),
        "docstrings begun as a fragment": len(fragments(ROOT)),
    }


def docstrings(text: str) -> Iterator[tuple[int, str]]:
    """The line and the text of each docstring: of a module, a class, a function or an attribute."""
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(found))):
                    yield statement.lineno, found
                case _:
                    pass


def fragments(root: Path, folders: Iterable[str] = DOCUMENTED) -> list[str]:
    """Place and first line of each docstring in `folders` that begins as a fragment."""
    return [
        f"{path.relative_to(root)}:{number}: {text.strip().splitlines()[0]}"
        for folder in folders
        for path in sorted((root / folder).rglob("*.py"))
        for number, text in docstrings(path.read_text())
        if FRAGMENT.match(text)
    ]


def drawn(sources: Mapping[str, str], *, seed: int, count: int = 30) -> list[str]:
    """Some docstrings, each below the line before it; the same for the same seed and tree."""
    found = [
        f"{name}:{number}: {source.splitlines()[number - 2].strip() if number > 1 else ''}\n{text.strip()}"
        for name, source in sorted(sources.items())
        for number, text in docstrings(source)
    ]
    return random.Random(seed).sample(found, count)


class FirstTokenSeen(BaseException):
    """The walk is over."""


class Walk:
    """Follows the calls of the main thread between modules of the package."""

    def __init__(self) -> None:
        self.rooms: list[str] = []
        self.num_returns = 0
        self.num_moves = 0
        self.passages: set[tuple[str, str]] = set()
        self._last = ""
        self._prefix = str(ROOT / "areal_sdk") + "/"
        self.done = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or self.done:
            return
        name = frame.f_code.co_filename
        function = (
            frame.f_code.co_flags & inspect.CO_OPTIMIZED
        )  # not a module or the body of a class
        if not name.startswith(self._prefix) or not function:
            return
        room = name.removeprefix(self._prefix)
        if room != self._last and not _paints():
            self.num_moves += 1
            self.passages.add((self._last, room))
            if room in self.rooms:
                self.num_returns += 1
            else:
                self.rooms.append(room)
            self._last = room
        if frame.f_code.co_name == "encode_generate":  # the request leaves for the engine's process
            self.done = True


def _paints() -> bool:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # before the event loop
        return False
    return task is not None and task.get_name() == "live view"


def train_once(on_token: Callable[[], None]) -> None:
    """One step of a tiny model; `on_token` is called whenever an agent has got its tokens."""
    import areal_sdk
    from areal_sdk import Agent, EpisodeContext, Task

    class Says(Agent):
        async def run(self, task: Task, context: EpisodeContext) -> float:
            reply = await context.generate([{"role": "user", "content": "?"}], max_new_tokens=2)
            on_token()
            return float(len(str(reply)) % 2)

    tasks = [Task(str(index), {}) for index in range(8)]
    with tempfile.TemporaryDirectory() as scratch:
        settings: Any = {
            "run": {"steps": 1, "dir": scratch},
            "rollout": {"batch": 8, "group_size": 4},
        }
        areal_sdk.train(Says, model="tiny", tasks=tasks, quiet=True, **settings)


def first_token() -> None:
    """Print the seconds from `train(agent)` to the first token: elapsed, and computed here."""
    seen: list[tuple[float, float]] = []
    began, computed = time.monotonic(), time.process_time()
    train_once(lambda: seen.append((time.monotonic() - began, time.process_time() - computed)))
    print(*seen[0])


def start_up(num_runs: int) -> dict[str, object]:
    command = [sys.executable, __file__, "--first-token"]
    runs = [
        tuple(map(float, subprocess.check_output(command, text=True).split()))
        for _ in range(num_runs)
    ]
    elapsed, computed = zip(*runs, strict=True)
    return {
        "seconds to the first token": f"{median(elapsed):.2f} (from {min(elapsed):.2f})",
        "of them computed in main": f"{median(computed):.2f} (from {min(computed):.2f})",
    }


def walk() -> dict[str, object]:
    path = Walk()
    sys.setprofile(path)
    try:
        train_once(lambda: None)
    finally:
        sys.setprofile(None)
    assert path.done, f"no token was sampled: {path.rooms}"
    return {
        "rooms": len(path.rooms),
        "passages": len(path.passages),
        "moves": path.num_moves,
        "returns": path.num_returns,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--walk", action="store_true")
    parser.add_argument("--start-up", type=int, default=0, metavar="RUNS")
    parser.add_argument("--first-token", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--fragments", action="store_true")
    parser.add_argument("--draw", type=int, metavar="SEED")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if arguments.first_token:
        first_token()
        return
    if arguments.fragments:
        print(*fragments(ROOT), sep="\n")
        return
    if arguments.draw is not None:
        print(*drawn(modules(), seed=arguments.draw), sep="\n\n")
        return
    if arguments.check:
        check()
        return
    found = figures(modules())
    if arguments.walk:
        found |= walk()
    if arguments.start_up:
        found |= start_up(arguments.start_up)
    for name, value in found.items():
        print(f"{name:32} {value}")


if __name__ == "__main__":
    main()
