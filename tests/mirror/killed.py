"""Copies to and from a mirror that are killed on the way.

python -m tests.mirror.killed      # a line of JSON for each: `run`, `mirror`, `fetch_to`, `at`

Answers `killed`, or `done` where the copy took fewer than `at` changes. A fork copies, and kills itself with SIGKILL at the
change number `at` of a file system, half a file included.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from areal_sdk_mirror.copying import Copier
from areal_sdk_mirror.fetching import fetch_run
from areal_sdk_mirror.store import open_store

CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "shutil.rmtree")
WRITES = os.O_WRONLY | os.O_RDWR


@dataclass(frozen=True, slots=True)
class Killer:
    _process: "subprocess.Popen[str]"

    def copy(self, run: Path, mirror: Path, *, at: int) -> bool:
        """Bring `mirror` up to date in a process that is killed at its change number `at`; whether it was."""
        return self._ask(run=str(run), mirror=str(mirror), at=at)

    def fetch(self, mirror: Path, to: Path, *, at: int) -> bool:
        return self._ask(fetch_to=str(to), mirror=str(mirror), at=at)

    def _ask(self, **asked: object) -> bool:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        assert answer in ("killed", "done"), answer
        return answer == "killed"


@contextmanager
def open_killer() -> Iterator[Killer]:
    command = [sys.executable, "-m", "tests.mirror.killed"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Killer(process)


def die_at(number: int) -> None:
    """Die before the change `number` of this process; where it is a copied file, with half of it written."""
    num_left = number

    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal num_left
        is_write = event == "open" and bool(int(str(arguments[2])) & WRITES)
        if not (is_write or event in CHANGES or event == "shutil.copyfile"):
            return
        num_left -= 1
        if num_left == 0:
            if event == "shutil.copyfile":
                source, target = (Path(str(path)) for path in arguments[:2])
                content = source.read_bytes()
                target.write_bytes(content[: len(content) // 2])
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def act(mirror: str, at: int, run: str = "", fetch_to: str = "") -> None:
    store = open_store(mirror)
    die_at(at)
    if fetch_to:
        fetch_run(store, Path(fetch_to), choose=lambda names: names)
        return
    copier = Copier(Path(run), store, keep=1)
    copier.take()
    copier.copy(is_last=True)


def main() -> None:
    for line in sys.stdin:
        if not (pid := os.fork()):
            act(**json.loads(line))
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        answer = "killed" if killed else "done" if status == 0 else f"failed: {status}"
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
