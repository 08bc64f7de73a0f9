"""The price of being looked at: one run, three pages of it open for twenty steps, closed for the next twenty, ...

    python benchmarks/watched.py [--run DIRECTORY] [--write]

The run is the guessing game of the examples. The pages are those that read most, in Chromium on the same machine, and
follow the run. Each window with pages is compared with those before and after it, which have none. The CPU
of the run's processes per step stands beside, for other work on the machine slows both.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from tables import table, write_section
from viewer import TESTS, TOKEN, Server, browser_cpu_s

from areal_sdk.errors import ConfigError
from areal_sdk.telemetry import RunDir

EXAMPLE = Path(__file__).parents[1] / "examples" / "agents" / "guess_number"
SETTINGS = {
    "run.steps": 420,
    "sft.steps": 30,
    "rollout.batch": 56,
    "eval.every": 1000,
    "eval.samples": 2,
}
"""A short run without evaluations on the way: one would make its window another kind of work."""
PAGES = ("curves", "episodes", "lanes")
WINDOW = 20
"""Steps of a window."""
BETWEEN = 4
"""Steps between two windows, in which pages open or close: what they cost once they are open is asked."""
POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Window:
    is_watched: bool
    steps_per_s: float
    cpu_s: float
    """CPU of the run's processes, a step."""
    viewer_s: float
    """CPU of the server and of Chromium, a second."""


def cpu_of_tree(root: int) -> float:
    """CPU of a process and of all below it, those that ended included."""
    known = dict(_processes())
    below = {root}
    while more := {pid for pid, (parent, _) in known.items() if parent in below} - below:
        below |= more
    return sum(known[pid][1] for pid in below if pid in known) / os.sysconf("SC_CLK_TCK")


def _processes() -> Iterator[tuple[int, tuple[int, int]]]:
    """Each process with its parent and its ticks."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        yield int(path.parent.name), (int(fields[1]), sum(map(int, fields[11:15])))


def step_times(run: Path) -> list[float]:
    """The time of each step so far."""
    try:
        return [step["time"] for step in RunDir.open(run).read_steps()]
    except (ConfigError, FileNotFoundError):
        return []


async def watch(run: Path, process: subprocess.Popen[bytes], profile: str) -> list[Window]:
    sys.path.insert(0, str(TESTS))
    driver = import_module("view_browser")
    while len(step_times(run)) < WINDOW:
        if process.poll() is not None:
            raise SystemExit(f"the run ended early: {run / 'logs'}")
        await _wait(process)
    windows: list[Window] = []
    with Server(run) as server:
        async with driver.opened_browser(driver.find_browser(), Path(profile)) as page:
            address = f"{server.address}/?token={TOKEN}"
            await page.open(address)
            await page.call("Page.navigate", url="about:blank")
            while process.poll() is None:
                is_watched = len(windows) % 2 == 1
                tabs = [await _open(page, server, name) for name in PAGES] if is_watched else []
                if (window := await _window(run, process, server, profile, is_watched)) is not None:
                    windows.append(window)
                    print(window, flush=True)
                for tab in tabs:
                    await page.call("Target.closeTarget", targetId=tab)
    return windows


async def _open(page: object, server: Server, name: str) -> str:
    place = f"{server.address}/#run/{server.run}/{name}"
    opened = await page.call("Target.createTarget", url=place)  # type: ignore[attr-defined]
    return str(opened["targetId"])


async def _window(
    run: Path, process: subprocess.Popen[bytes], server: Server, profile: str, is_watched: bool
) -> Window | None:
    """The next steps; None if the run ended before."""

    def cpu() -> tuple[float, float]:
        return cpu_of_tree(process.pid), server.cpu_s() + browser_cpu_s(profile)

    start = len(step_times(run))
    while len(step_times(run)) < start + BETWEEN:
        if process.poll() is not None:
            return None
        await _wait(process)
    first, (of_run, of_viewer) = len(step_times(run)), cpu()
    while len(step_times(run)) < first + WINDOW:
        if process.poll() is not None:
            return None
        await _wait(process)
    times, (run_after, viewer_after) = step_times(run), cpu()
    num, lasted = len(times) - first, times[-1] - times[first - 1]
    return Window(
        is_watched, num / lasted, (run_after - of_run) / num, (viewer_after - of_viewer) / lasted
    )


async def _wait(process: subprocess.Popen[bytes]) -> None:
    await asyncio.sleep(POLL_S)


def report(windows: list[Window], load: float) -> str:
    around = [
        parts
        for parts in zip(windows, windows[1:], windows[2:], strict=False)
        if parts[1].is_watched
    ]

    def ratios(name: str) -> list[float]:
        return [
            getattr(one, name) / statistics.fmean((getattr(before, name), getattr(after, name)))
            for before, one, after in around
        ]

    speed, cpu = ratios("steps_per_s"), ratios("cpu_s")

    def median_of(name: str, *, is_watched: bool) -> float:
        values = [float(getattr(one, name)) for one in windows if one.is_watched == is_watched]
        return statistics.median(values)

    rows = [
        [what, *(f"{median_of(name, is_watched=on):.3g}" for on in (False, True)), ratio, aim]
        for what, name, ratio, aim in (
            ("steps a second", "steps_per_s", f"{statistics.median(speed):.3f}", "0.98"),
            ("CPU of the run, seconds a step", "cpu_s", f"{statistics.median(cpu):.3f}", ""),
            ("CPU of server and Chromium, seconds a second", "viewer_s", "", ""),
        )
    ]
    return (
        f"## A run that is looked at\n\n`python benchmarks/watched.py --write`: {len(around)} windows of {WINDOW} steps of "
        f"one run with three pages of it open in Chromium ({', '.join(PAGES)}), each beside the mean of the windows before "
        f"and after it, which have none: the median of the ratios, which lie between {min(speed):.2f} and {max(speed):.2f} for "
        f"steps a second. On {os.cpu_count()} cores with a load of {load:.0f}, most of it other work that changed "
        "meanwhile: the CPU says more than the time.\n\n"
        + table(("", "no page", "three pages", "ratio", "aim"), rows)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="where to write the run")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        run = given.run or Path(scratch) / "watched"
        command = [sys.executable, "-m", "areal_sdk", "train", str(EXAMPLE.with_suffix(".py"))]
        command += ["--config", str(EXAMPLE.with_suffix(".toml"))]
        changes = {**SETTINGS, "run.dir": run.parent, "run.name": run.name}
        command += [
            part for change in changes.items() for part in ("--set", "=".join(map(str, change)))
        ]
        began = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            profile = str(Path(scratch) / "profile")
            windows = asyncio.run(watch(run, process, profile))
        print(f"{time.monotonic() - began:.0f} s")
        text = report(windows, os.getloadavg()[0])
    print(text)
    if given.write:
        write_section("watched", text)


if __name__ == "__main__":
    main()
