"""The viewer on a run of 100,000 episodes and one of 32,000 tokens: each answer, memory, paint and the exported page.

    python benchmarks/viewer.py [--episodes 100000] [--run DIRECTORY] [--write]

The run is written by the writers of a real run. The server is the real command in a process of its own, and each figure
is the median of five after the first. CPU is that of the server's process. Chromium shows the pages, if there is one.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from urllib.parse import quote

import aiohttp
from tables import table, write_section

from areal_sdk import Episode, Outcome, Task, Turn
from areal_sdk.testing import RecordedRun

STEP, GROUP, TASKS = 500, 5, 4000
LONG_TOKENS, LONG_TURNS = 32_000, 8
TOKEN = "benchmark"
TESTS = Path(__file__).parents[1] / "plugins" / "areal-sdk-view" / "tests"
"""Folder of the driver of Chromium."""
ROUNDS = 5
MORE = 20
"""Rounds of all requests, to see whether memory grows."""
EXPORTED = 500
"""Episodes of the exported page."""
REQUEST = aiohttp.ClientTimeout(total=120)
ASKED = {
    "list, newest 100": ("episodes?limit=100", 1000),
    "filter by numbers": (
        "episodes?where=" + quote("reward < 0.3 and num_turns == 1 and step > 20"),
        300,
    ),
    "filter by a text": ("episodes?where=" + quote('"sum 7" in text and split == train'), 300),
    "most surprising first": ("episodes?order=surprising", 300),
    "siblings": ("siblings?group=train-2.3", None),
    "what became of 4,000 tasks": ("tasks", None),
    "failures in groups": ("failures", None),
    "lanes": ("lanes", None),
    "curves": ("events", None),
    "an episode of 32,000 tokens": ("episode?id=long", 200),
    "all its tokens": ("tokens?id=long", 200),
}
"""Answers: the address below the run's, and the aim in milliseconds."""


def write(directory: Path, num_episodes: int) -> None:
    run = RecordedRun(directory, settings={"algorithm": {"name": "grpo"}})
    for step in range(1, num_episodes // STEP + 1):
        episodes = [short(step, number) for number in range(STEP)]
        run.step(
            step,
            [(episode, ()) for episode in episodes],
            advantages={e.id: (e.reward or 0.0) - 0.5 for e in episodes},
            metrics={"batch/episodes": STEP, "batch/reward": 0.5, "train/entropy": 1 / step},
        )
    run.measure(long())
    run.close()


def short(step: int, number: int) -> Episode:
    task = (step * STEP // GROUP + number // GROUP) % TASKS
    turn = Turn(
        tuple(range(60)),
        (number % 90, 91, 92, 93, 94, 95),
        (-0.5,) * 6,
        (step - 1,) * 6,
        {"role": "assistant", "content": f"The sum {number} is {number * step}, I think."},
        (
            {
                "role": "user",
                "content": f"What is {number} times {step}? Think, then give the number alone.",
            },
        ),
    )
    reward = (number * 7 + step) % 11 / 10
    group = f"train-{step}.{number // GROUP}"
    outcome = Outcome.scored(reward, success=reward == 1.0)
    return Episode(
        f"{group}.{number % GROUP}", Task(f"train-{task}"), (turn,), outcome, group=group
    )


def long() -> Episode:
    """Each turn reads half as many tokens as it samples."""
    turns: list[Turn] = []
    size = LONG_TOKENS // LONG_TURNS
    for number in range(LONG_TURNS):
        before = turns[-1] if turns else None
        turns.append(
            Turn(
                tuple(range(size // 3)),
                tuple(n % 3000 for n in range(size - size // 3)),
                tuple(-(n % 7) / 2 for n in range(size - size // 3)),
                (number,) * (size - size // 3),
                {"role": "assistant", "content": "word " * size},
                ({"role": "user", "content": "and then? " * 200},),
                parent=number - 1 if before else None,
                num_shared=before.num_tokens if before else 0,
                shares_with=number - 1 if before else None,
                _before=before,
            )
        )
    return Episode("long", Task("long"), tuple(turns), Outcome.scored(1.0))


class Server:
    """The real command, serving one run."""

    def __init__(self, run: Path) -> None:
        command = [sys.executable, "-m", "areal_sdk", "view", str(run)]
        environment = {**os.environ, "AREAL_SDK_VIEW_TOKEN": TOKEN}
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().split()[1].partition("?")[0].rstrip("/")
        self.run = run.name

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def memory_mb(self) -> float:
        """Resident memory."""
        pages = int(self._proc("statm").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def cpu_s(self) -> float:
        fields = self._proc("stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _proc(self, name: str) -> str:
        return Path(f"/proc/{self._process.pid}/{name}").read_text()


async def ask(server: Server) -> tuple[list[list[str]], str]:
    """The rows of the table of answers, and what memory does."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    before = server.memory_mb()
    async with aiohttp.ClientSession(server.address, headers=headers, timeout=REQUEST) as session:
        began, cpu = time.monotonic(), server.cpu_s()
        await timed(session, server, "episodes?limit=100")
        first = ["the first look, which reads the index", "", ms(server.cpu_s() - cpu)]
        rows = [[*first, ms(time.monotonic() - began), ""]]
        for name, (path, aim) in ASKED.items():
            await timed(session, server, path)
            cpu = server.cpu_s()
            seen = [await timed(session, server, path) for _ in range(ROUNDS)]
            cpu = (server.cpu_s() - cpu) / ROUNDS
            wall = statistics.median(wall for wall, _ in seen)
            kilobytes = f"{seen[0][1] / 1e3:.0f}"
            rows.append([name, f"{aim} ms" if aim else "", ms(cpu), ms(wall), kilobytes])
            print(*rows[-1], sep="  ", flush=True)
        read = server.memory_mb()
        for _ in range(MORE):
            for path, _ in ASKED.values():
                await timed(session, server, path)
        after = server.memory_mb()
    num = MORE * len(ASKED)
    memory = (
        f"Memory of the server: {before:.0f} MB at the start, {read:.0f} MB with the index, "
        f"{after:.0f} MB after {num} more requests."
    )
    print(memory, flush=True)
    return rows, memory


async def timed(session: aiohttp.ClientSession, server: Server, path: str) -> tuple[float, int]:
    """Seconds and bytes of an answer."""
    began = time.monotonic()
    async with session.get(f"/api/runs/{server.run}/{path}") as response:
        body = await response.read()
        assert response.status == 200, body[:300]
    return time.monotonic() - began, len(body)


SHOWN = """(async () => {
  const began = performance.now();
  document.body.dataset.ready = "";
  location.hash = PLACE;
  while (!document.body.dataset.ready) await new Promise((next) => setTimeout(next, 4));
  await new Promise((next) => requestAnimationFrame(() => requestAnimationFrame(next)));
  return (performance.now() - began) / 1000;
})()"""
"""Seconds until a place is on the screen, its answers included."""


async def show(server: Server, exported: str, size: str) -> list[list[str]]:
    """Rows of the table of pages: how long Chromium takes to show them."""
    sys.path.insert(0, str(TESTS))
    driver = import_module("view_browser")

    browser = driver.find_browser()
    if browser is None:
        return [["no Chromium here", "", "", "", ""]]
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        async with driver.opened_browser(browser, Path(scratch)) as page:
            await page.open(f"{server.address}/?token={TOKEN}")
            for name, place in {
                "the list of 100,000 episodes": "episodes",
                "the episode of 32,000 tokens": "episode/long",
            }.items():
                script = SHOWN.replace("PLACE", f"'#run/{server.run}/{place}'")
                seen = []
                for _ in range(ROUNDS + 1):
                    cpu = browser_cpu_s(scratch)
                    shown_s = await page.run(script)
                    seen.append((shown_s, browser_cpu_s(scratch) - cpu))
                    await page.go(f"#run/{server.run}/settings")
                rows.append([name, "", *medians(seen[1:]), ""])
            seen = []
            for _ in range(ROUNDS):
                began, cpu = time.monotonic(), browser_cpu_s(scratch)
                await page.open(exported)
                seen.append((time.monotonic() - began, browser_cpu_s(scratch) - cpu))
                await page.call("Page.navigate", url="about:blank")
            name = f"an exported page of {EXPORTED} episodes"
            rows.append([name, "2 s, 10 MB", *medians(seen), size])
    return rows


def medians(seen: list[tuple[float, float]]) -> list[str]:
    """The median of the CPU, and that of the time."""
    shown, cpu = (statistics.median(values) for values in zip(*seen, strict=True))
    return [f"{cpu:.2f} s", f"{shown:.2f} s"]


def browser_cpu_s(profile: str) -> float:
    """CPU of all processes of the browser with this profile: those of its session."""
    ticks, session = {}, None
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            ticks[process.name] = int(fields[3]), int(fields[11]) + int(fields[12])
            if profile in (process / "cmdline").read_text():
                session = int(fields[3])
    return sum(own for of, own in ticks.values() if of == session) / os.sysconf("SC_CLK_TCK")


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"


def measure(run: Path, num_episodes: int, scratch: Path, *, is_written: bool) -> None:
    page_file = scratch / "page.html"
    command = [sys.executable, "-m", "areal_sdk", "view", str(run), "--export", str(page_file)]
    began = os.times()
    subprocess.run([*command, "--episodes", str(EXPORTED)], check=True)
    ended = os.times()
    export_s = ended.children_user + ended.children_system
    export_s -= began.children_user + began.children_system
    load = os.getloadavg()[0]
    with Server(run) as server:
        answers, memory = asyncio.run(ask(server))
        size = f"{page_file.stat().st_size / 1e6:.1f} MB"
        pages = asyncio.run(show(server, page_file.as_uri(), size))
    text = (
        f"## The viewer on a run of {num_episodes:,} episodes\n\n`python benchmarks/viewer.py --write`: medians of "
        f"{ROUNDS}, on {os.cpu_count()} cores with a load of {load:.0f} by other work: CPU says more than the time of the "
        "request.\n\n"
        + table(("answer", "aim", "CPU of the server", "request", "kB"), answers)
        + f"\n\n{memory} The export took {export_s:.1f} s of CPU.\n\n"
        + table(
            ("in Chromium, answers included", "aim", "CPU of Chromium", "shown after", "size"),
            pages,
        )
    )
    print(text)
    if is_written:
        write_section("viewer", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument("--run", type=Path, help="a run of an earlier call, or where to write one")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        run = given.run or Path(scratch) / "many"
        if not run.is_dir():
            write(run, given.episodes)
        measure(run, given.episodes, Path(scratch), is_written=given.write)


if __name__ == "__main__":
    main()
