"""Figures of the package's structure, for a comparison before and after a large change.

    python scripts/house.py            # of this tree
    python scripts/house.py --walk     # also the way of `train(agent)` to the first sampled token

The walk runs one training step of a tiny model and follows the main process. A room is a module that
is entered; a return is a call into a room that was left before. A passage is a pair of rooms: moves and
returns count each round of a loop, passages count it once.
"""

import argparse
import ast
import inspect
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path.cwd()
SMALL = 60


def modules() -> dict[str, str]:
    paths = (path for path in (ROOT / "areal_sdk").rglob("*.py") if "templates" not in path.parts)
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}


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
    }


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
        if room != self._last:
            self.num_moves += 1
            self.passages.add((self._last, room))
            if room in self.rooms:
                self.num_returns += 1
            else:
                self.rooms.append(room)
            self._last = room
        if frame.f_code.co_name == "encode_generate":  # the request leaves for the engine's process
            self.done = True


def walk() -> dict[str, object]:
    import areal_sdk
    from areal_sdk import Agent, EpisodeContext, Task

    class Says(Agent):
        async def run(self, task: Task, context: EpisodeContext) -> float:
            reply = await context.generate([{"role": "user", "content": "?"}], max_new_tokens=2)
            return float(len(str(reply)) % 2)

    path = Walk()
    tasks = [Task(str(index), {}) for index in range(8)]
    with tempfile.TemporaryDirectory() as scratch:
        settings: Any = {
            "run": {"steps": 1, "dir": scratch},
            "rollout": {"batch": 8, "group_size": 4},
        }
        sys.setprofile(path)
        try:
            areal_sdk.train(Says, model="tiny", tasks=tasks, quiet=True, **settings)
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
    found = figures(modules())
    if parser.parse_args().walk:
        found |= walk()
    for name, value in found.items():
        print(f"{name:32} {value}")


if __name__ == "__main__":
    main()
