"""Faults under training: processes that are killed or stopped, one after the other.

    python benchmarks/chaos.py [--faults 200] [--runs 10] [--seed 0] [--save FILE] [--write]

Each run trains a tiny model on benchmarks/agents/plain_bytes.py with two rollout nodes, two workers for agents and two for
rewards in each, an engine and two trainer ranks, all processes of their own. A fault hits at a random step a process that
is chosen at random; several may hit in one step. A run of the same seed without faults shows what it should learn. Links
that are cut are in tests/netns/test_faults.py.

A killed rank ends the run, which goes on by itself from its last checkpoint (`run.restarts`). A killed main process is
followed by `areal-sdk train --resume`. If no step is taken for `STALLED_S`, the run has stalled, and the program fails; so it
does if the ledger does not balance, if an episode is left in it as running, or if the run ends in another way. `--save` keeps
finished runs, so that a long series can go on where it stopped.
"""

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tables import table, write_section

from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.metrics import read_metrics

ROOT = Path(__file__).parents[1]
AGENT = ROOT / "benchmarks" / "agents" / "plain_bytes.py"
DOCUMENT = ROOT / "docs" / "nodes.md"
SETTINGS: Mapping[str, Any] = {
    "model": "tiny",
    "run.checkpoint_every": 4,
    "run.restarts": 1000,
    "rollout.batch": 32,
    "rollout.group_size": 8,
    "rollout.max_inflight": 64,
    "rollout.nodes": 2,
    "rollout.workers": 2,
    "engine.dtype": "float32",
    "trainer.precision": "float32",
    "trainer.learning_rate": 1e-3,
    "trainer.ranks": 2,
    "eval.before": False,
    "eval.samples": 8,
}
KINDS = (
    *(f"{role} {how}" for role in ("node", "engine", "rank") for how in ("killed", "stopped")),
    "agent worker killed",
    "reward worker killed",
    "main process killed",
)
STEPS = 60
FIRST_STEP, LAST_STEPS = 2, 4
"""Faults hit after the first steps and before the last ones."""
STALLED_S = 300.0
"""Seconds without a step after which a run has stalled: ten times what a silent machine takes to be
missed."""
RESTARTING = ("rank killed", "main process killed")
"""Faults after which the whole run starts again, which takes most of the time: a quarter as many as of the others."""
STOPPED_S = (0.5, 5.0)
"""Seconds, at least and at most, for which a process is stopped."""


@dataclass
class Hit:
    """A fault."""

    kind: str
    at: float
    step: int


@dataclass
class Result:
    """A run that has ended."""

    seed: int
    success: float
    reward: float
    ledger: dict[str, Any]
    seconds: float
    num_steps: int
    """Steps taken, with those that were taken again after a restart."""
    restarts: int
    hits: list[Hit] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    """Seconds from each hit to the second step after it: the first may have been under way."""


def processes() -> Iterator[tuple[int, int, list[str]]]:
    """Every process with its parent and its arguments."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):  # it ended meanwhile
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                arguments = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                yield int(entry.name), parent, arguments


def descendants(main: int, name: str) -> list[int]:
    """Processes that `main` and its children started, by their name, a regular expression."""
    found = list(processes())
    parents = {pid: parent for pid, parent, _ in found}
    return [
        pid
        for pid, _, arguments in found
        if any(re.fullmatch(name, part) for part in arguments) and main in ancestors(pid, parents)
    ]


def ancestors(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    while pid in parents:
        pid = parents[pid]
        yield pid


class Run:
    """A run and the faults that hit it."""

    def __init__(self, directory: Path, *, seed: int, num_faults: int) -> None:
        self._generator = random.Random(f"{seed} {num_faults}")
        self._seed = seed
        self._num_faults = num_faults
        self._dir = directory / f"{'faults' if num_faults else 'quiet'}-{seed}"
        self._metrics = self._dir / "metrics.jsonl"
        self._hits: list[Hit] = []
        self._output = (directory / f"{self._dir.name}.txt").open("w+")
        self._began = self._started_at = time.time()
        settings = {**SETTINGS, "run.steps": STEPS, "run.seed": seed}
        settings |= {"run.dir": directory, "run.name": self._dir.name}
        options = [part for pair in settings.items() for part in ("--set", "{}={}".format(*pair))]
        chosen = ("--plugin", str(AGENT), "--reward", "plain_bytes")
        self._main = self._start("train", str(AGENT), *chosen, *map(toml, options))

    def to_its_end(self) -> Result:
        try:
            most = STEPS - LAST_STEPS
            moments = self._generator.choices(range(FIRST_STEP, most), k=self._num_faults)
            often = [kind for kind in KINDS for _ in range(1 if kind in RESTARTING else 4)]
            kinds = self._generator.choices(often, k=len(moments))
            for moment, kind in zip(sorted(moments), kinds, strict=True):
                self._wait_for(lambda moment=moment: self._last_step() >= moment)  # type: ignore[misc]
                self._inflict(kind)
            while self._main.poll() is None:
                self._check_stall()
                time.sleep(0.2)
            if self._main.returncode:
                raise self._failed(f"exit code {self._main.returncode}")
            return self._result()
        finally:
            self._main.kill()
            self._main.wait()
            self._output.close()

    def _start(self, *arguments: str) -> "subprocess.Popen[str]":
        self._started_at = time.time()
        return subprocess.Popen(
            [sys.executable, "-m", "areal_sdk", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def _inflict(self, kind: str) -> None:
        hit = Hit(kind, time.time(), self._last_step())
        if kind == "main process killed":
            self._main.kill()
            self._main.wait()
            self._hits.append(hit)
            self._main = self._start("train", "--resume", str(self._dir))
            return
        seconds = self._generator.uniform(*STOPPED_S)
        number = self._generator.randrange(2)
        role, how = kind.rsplit(" ", 1)
        pid = self._find(
            {
                "node": f"node-{number}",
                "rank": f"trainer-{number}",
                "agent worker": r"agent-\d+",
                "reward worker": r"reward-\d+",
            }.get(role, role)
        )
        hit.at = time.time()
        self._hits.append(hit)
        with contextlib.suppress(ProcessLookupError):  # it ended at this moment
            os.kill(pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
            if how == "stopped":
                time.sleep(seconds)
                os.kill(pid, signal.SIGCONT)

    def _find(self, name: str) -> int:
        """A process of the run, as soon as there is one of this name."""
        found: list[int] = []

        def is_there() -> bool:  # it may be starting
            found[:] = descendants(self._main.pid, name)
            return bool(found)

        self._wait_for(is_there)
        return self._generator.choice(sorted(found))

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._main.poll() is not None:
                raise self._failed(f"it ended early, exit code {self._main.returncode}")
            self._check_stall()
            time.sleep(0.05)

    def _check_stall(self) -> None:
        latest = max([self._started_at, *self._times()[-1:]])
        if time.time() - latest > STALLED_S and self._last_step() < STEPS:
            self._main.send_signal(signal.SIGUSR1)  # it prints what it waits for
            time.sleep(2)
            raise self._failed(f"no step for {STALLED_S:g} s")

    def _failed(self, why: str) -> RuntimeError:
        self._output.seek(0)
        hits = "; ".join(f"{hit.kind} at step {hit.step}" for hit in self._hits)
        last = "".join(self._output.readlines()[-60:])
        return RuntimeError(f"{self._dir.name}: {why}, after: {hits}\n{last}")

    def _rows(self) -> list[dict[str, Any]]:
        return read_metrics(self._metrics, kind="step") if self._metrics.exists() else []

    def _times(self) -> list[float]:
        return [row["time"] for row in self._rows()]

    def _last_step(self) -> int:
        return max((row["step"] for row in self._rows()[-1:]), default=0)

    def _result(self) -> Result:
        run_dir = RunDir.open(self._dir)
        books = run_dir.read_ledger()
        assert books is not None
        ended = books["buffered"] + books["trained"] + sum(books["dropped"].values())
        if books["running"] or books["started"] != ended:
            raise self._failed(f"the books do not balance: {books}")
        (end,) = run_dir.read_metrics(kind="end")
        after = end["after"]["eval"]
        times = [*self._times(), end["time"], end["time"]]
        waits = [sorted(at for at in times if at > hit.at)[1] - hit.at for hit in self._hits]
        return Result(
            self._seed,
            after["success"],
            after["reward"],
            books,
            time.time() - self._began,
            len(times) - 2,
            len(run_dir.read_metrics(kind="resume")),
            self._hits,
            waits,
        )


def toml(option: str) -> str:
    """A value of `--set`, in which Python's booleans are those of TOML.

    >>> toml("eval.before=False")
    'eval.before=false'
    """
    name, is_setting, value = option.partition("=")
    return f"{name}={value.lower()}" if is_setting and value in ("True", "False") else option


class Saved:
    """Finished runs, in a file if one is given."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.results: list[Result] = []
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                row["hits"] = [Hit(**hit) for hit in row["hits"]]
                self.results.append(Result(**row))

    def has(self, seed: int, num_faults: int) -> bool:
        return any((r.seed, len(r.hits)) == (seed, num_faults) for r in self.results)

    def add(self, result: Result) -> None:
        self.results.append(result)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")


def take(seed: int, num_faults: int, directory: Path, saved: Saved) -> None:
    if saved.has(seed, num_faults):
        return
    result = Run(directory, seed=seed, num_faults=num_faults).to_its_end()
    saved.add(result)
    longest = f", longest {max(result.waits):.0f} s" if result.waits else ""
    print(
        f"seed {seed}: {num_faults} faults{longest}, {result.restarts} restarts, "
        f"{result.num_steps} steps in {result.seconds:.0f} s, success {result.success:.2f}, {result.ledger}",
        flush=True,
    )


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="areal-chaos-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def report(results: Sequence[Result]) -> str:
    """The tables of the runs with faults, compared with those of the same seeds without."""
    hit = [result for result in results if result.hits]
    quiet = {result.seed: result for result in results if not result.hits}
    waits: dict[str, list[float]] = {}
    for result in hit:
        for one, wait in zip(result.hits, result.waits, strict=True):
            waits.setdefault(one.kind, []).append(wait)
    rows = [
        (kind, len(found), f"{statistics.median(found):.1f}", f"{max(found):.1f}")
        for kind, found in sorted(waits.items())
    ]
    total = [wait for found in waits.values() for wait in found]
    rows.append(("all", len(total), f"{statistics.median(total):.1f}", f"{max(total):.1f}"))
    books: Counter[str] = Counter()
    for result in hit:
        books.update({name: result.ledger[name] for name in ("started", "trained", "buffered")})
        books.update(result.ledger["dropped"])
    dropped = ", ".join(
        f"{count:,} {name}"
        for name, count in sorted(books.items())
        if name not in ("started", "trained", "buffered")
    )
    pairs = [(result, quiet[result.seed]) for result in hit if result.seed in quiet]
    with_faults = statistics.mean(result.success for result, _ in pairs)
    without = statistics.mean(result.success for _, result in pairs)
    least = min(result.success - other.success for result, other in pairs)
    return (
        f"{len(total)} faults in {len(hit)} run{'s' * (len(hit) > 1)} of {STEPS} steps; {sum(r.restarts for r in hit)} restarts from a "
        f"checkpoint. No run stalled for {STALLED_S:g} s or ended otherwise. All ledgers balanced: "
        f"{books['started']:,} episodes started = {books['trained']:,} trained + {books['buffered']:,} buffered at the "
        f"end + dropped: {dropped or 'none'}. Held-out success: {with_faults:.3f} with faults, {without:.3f} without "
        f"(means; the largest loss of a run is {max(0.0, -least):.3f}).\n\n"
        + table(("fault", "number", "s until the second step after it, median", "longest"), rows)
    )


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, help="finished runs, one a line")
    parser.add_argument("--write", action="store_true", help=f"into {DOCUMENT.name}")
    options = parser.parse_args()
    saved = Saved(options.save)
    each = options.faults // options.runs
    counts = [each + (i < options.faults % options.runs) for i in range(options.runs)]
    with scratch() as directory:
        for number, count in enumerate(counts):
            for num_faults in (0, count):
                take(options.seed + number, num_faults, directory, saved)
    text = report(saved.results)
    print(text)
    if options.write:
        write_section("chaos", text, document=DOCUMENT)


if __name__ == "__main__":
    main()
